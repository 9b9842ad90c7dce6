# The first process of a node's namespaces (pid, mount, net). It gives the kubelet and the container runtime a machine of
# their own to write to, starts them, and ends with the kubelet; with it ends everything in its namespaces.
#
# Arguments: the node's folder, the folder of unpacked packages, the kubelet, the image.
set -e
dir=$1 packages=$2 kubelet=$3 image=$4
# Before /var is covered: the folder may be in it.
exec 3>>"$dir/logs/containerd.log" 4>>"$dir/logs/kubelet.log"
until [ -e "$dir/connected" ]; do sleep 0.02; done

# All that is written stays in memory, and goes with the namespace.
mount -t tmpfs -o mode=0755 node "$dir/node"
for place in etc var; do
  mkdir -p "$dir/node/$place/new" "$dir/node/$place/work"
  mount -t overlay -o "lowerdir=/$place,upperdir=$dir/node/$place/new,workdir=$dir/node/$place/work" node "/$place"
done
rm -f /etc/hosts /etc/machine-id
cp "$dir/config/hosts" "$dir/config/machine-id" /etc
mount -t tmpfs -o mode=0755 node /run
mkdir "$dir/node/kubelet" "$dir/node/containerd" "$dir/node/kernel" "$dir/node/plugins"

# The kernel's settings that a kubelet wants are the whole host's: it finds them as it wants them and writes nothing.
while read -r setting value; do
  [ -e "/proc/sys/$setting" ] || continue
  file=$dir/node/kernel/$(echo "$setting" | tr / .)
  echo "$value" >"$file"
  mount --bind "$file" "/proc/sys/$setting"
done <<SETTINGS
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SETTINGS

PATH=$packages/usr/bin:$packages/usr/sbin:$PATH
containerd --config "$dir/config/containerd.toml" >&3 2>&3 3>&- 4>&- &
until ctr version >/dev/null 2>&1; do sleep 0.05; done
ctr --namespace k8s.io images import "$image" >&3 2>&3
set --
while read -r flag; do set -- "$@" "$flag"; done <"$dir/config/kubelet-flags"
"$kubelet" "$@" >&4 2>&4 3>&- 4>&- &
# The first process of a namespace gets every orphan: the shell fetches those that end while it waits.
wait $!
