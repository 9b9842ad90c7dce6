# Owns the servers of one control plane. It starts each server whose name it reads, one per line (again, if that
# one ended), and when its
# input ends - the process that holds the other end is done, or was killed - it ends them all and removes
# their folder. It ends only processes that are still its children: a number may have a new owner.
#
# Arguments: the folder, which must not exist: whoever makes it must be the one who removes it. It holds run/NAME,
# the command line of each server; the supervisor adds run/NAME.pid and logs/NAME.log. Then, if servers leave something
# outside the folder, a script that removes it when they have ended, and that script's argument.
dir=$1 clean_up=$2 argument=$3
# Ctrl-C in a terminal reaches every process of the foreground group; it is the other process that answers it.
trap '' HUP INT TERM
mkdir -m 700 "$dir" && mkdir "$dir/run" "$dir/logs" || exit 1
tell() {
  echo "$2" >"$dir/run/$1.tmp"
  mv "$dir/run/$1.tmp" "$dir/run/$1.pid"
}
tell supervisor "$$"
# From here on nobody may be listening any more, and a shell that complains to nobody is ended for it.
exec 2>/dev/null
pids=
while read -r name; do
  sh "$dir/run/$name" </dev/null >>"$dir/logs/$name.log" 2>&1 &
  pids="$pids $!"
  tell "$name" "$!"
done
# The folder is all the servers have: there is nothing they could save by ending slowly.
for pid in $pids; do
  grep -q "^PPid:[[:space:]]*$$\$" "/proc/$pid/status" && kill -9 "$pid"
done
wait
[ -z "$clean_up" ] || sh -c "$clean_up" 5spot-clean-up "$argument" </dev/null >/dev/null
rm -rf "$dir"
