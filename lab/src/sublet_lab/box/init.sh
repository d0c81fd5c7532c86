# pid 1 once the host has its own filesystem. The host is on as long as whoever started it holds the other end of stdin.
set -u
. /box/env
exec 3<&0 < /dev/null
trap 'exit 0' TERM  # of `shutdown`
(cat <&3 > /dev/null; kill -TERM 1) &
[ -x /box/service ] && setsid /box/service > /var/log/service.log 2>&1 3<&- &  # of the image: what an OS starts
setsid /bin/bash /box/user-data > /var/log/user-data.log 2>&1 3<&- &
while :; do sleep 3600 3<&- & wait $!; done
