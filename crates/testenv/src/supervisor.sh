# Owns the servers of one control plane. It starts each server whose name it reads, one per line, and when its
# input ends - the process that holds the other end is done, or was killed - it ends them all and removes
# their folder. Being their parent, it cannot hit a process that is not its own.
#
# Arguments: the folder. It holds run/NAME, the command line of each server; the supervisor adds run/NAME.pid
# and logs/NAME.log.
dir=$1
# Ctrl-C in a terminal reaches every process of the foreground group; it is the other process that answers it.
trap '' HUP INT TERM
pids=
while read -r name; do
  sh "$dir/run/$name" </dev/null >"$dir/logs/$name.log" 2>&1 &
  pids="$pids $!"
  echo "$!" >"$dir/run/$name.tmp"
  mv "$dir/run/$name.tmp" "$dir/run/$name.pid"
done
# The folder is all the servers have: there is nothing they could save by ending slowly.
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
wait
rm -rf "$dir"
