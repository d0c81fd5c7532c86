# pid 1 of a host, in namespaces of its own: makes its filesystem, goes there, and runs its user data.
#   boot.sh ROOT NAME SHOWN ADDED: an empty folder, the host's name, a file with the paths that are shown, a folder to copy
set -eu
root=$1 name=$2 shown=$3 added=$4
mount --make-rprivate /
mount -t tmpfs -o mode=755 host "$root"
while read -r path; do
  if [ -L "$path" ]; then cp -P "$path" "$root$path"; continue; fi  # /bin -> usr/bin
  mkdir -p "$root$path"
  mount --bind "$path" "$root$path"
  mount -o remount,bind,ro "$root$path"
done < "$shown"
cp -a /etc "$root/etc"
cp -a "$added/." "$root/"
cd "$root"
mkdir -p proc sys dev/shm tmp run root home var/tmp var/log mnt
chmod 1777 tmp var/tmp dev/shm
chmod 700 root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
for each in null zero full random urandom; do
  : > "dev/$each"
  mount --bind "/dev/$each" "dev/$each"
done
ln -s /proc/self/fd dev/fd
for each in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${each%%:*}" "dev/${each#*:}"; done
hostname "$name"
rm -f etc/hosts etc/hostname etc/resolv.conf
echo "$name" > etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" > etc/hosts  # as Debian has it
: > etc/resolv.conf  # nobody answers for names
pivot_root . mnt
umount -l /mnt
exec /bin/bash /box/init
