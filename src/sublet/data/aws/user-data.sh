#!/bin/bash
# Makes this machine a node of Sublet's, and ends it when nobody wants it any more. Runs as root at the first boot.
#
# The token opens one door, as this one node, while the node is rented; where lines have certificates, it opens it once. It goes from here to a file that only root
# reads, and nowhere else: not to a command line, not to the environment of a process.
set -u
umask 077
run_dir="${SUBLET_RUN_DIR:-/run/sublet}"
mkdir -p "$run_dir"
cd "$run_dir" || exit 1
printf '%s' @TOKEN@ > token
printf '%s' @AUTHORITY@ > authority  # the certificate that the controller is known by; no secret
: > lease

# The dead man's switch is started first, so that whatever fails after it ends the machine, too.
cat > watch.sh <<'WATCH'
set -u
uptime_s() { read -r up _ < /proc/uptime; echo "${up%%.*}"; }  # no clock that somebody may set
end_node() { echo "the node ends: $1"; shutdown -h now; sleep 60; poweroff -f; }
heard_s=$(uptime_s)
until_s=$((heard_s + @BOOT_S@))  # by then the agent must have been heard
renewed=$(stat -c %y lease)
while sleep @POLL_S@; do
  now_s=$(uptime_s)
  if [ "$(stat -c %y lease)" != "$renewed" ]; then  # the agent touches it whenever the controller renews the lease
    renewed=$(stat -c %y lease)
    until_s=$((now_s + @LEASE_S@))
  fi
  if [ "$now_s" -ge "$until_s" ]; then end_node "no lease was renewed in time"; break; fi
  if [ -e over ]; then end_node "$(cat over)"; break; fi
done
WATCH
setsid bash watch.sh < /dev/null > watch.log 2>&1 &

over() { printf '%s' "$1" > over.new; mv over.new over; }
if [ -n @INSTALL@ ]; then
  timeout @BOOT_S@ @PYTHON@ -m pip install --quiet --disable-pip-version-check @PACKAGES@ > install.log 2>&1 \
    || { over "what the node needs could not be installed"; exit 1; }
fi
code=@CODE@
if [ -n "$code" ]; then  # Sublet itself, of the controller's version, by its digest; for everybody here to read
  place="${SUBLET_CODE_DIR:-/opt/sublet}/$code"
  while [ ! -d "$place" ]; do
    (umask 022; mkdir -p "${place%/*}" && @PYTHON@ -c @FETCH@ @FROM@ @NODE@ "$code" "$place") > fetch.log 2>&1
    if [ $? -eq 3 ]; then over "the controller does not send its code"; exit 1; fi
    [ -d "$place" ] || sleep @POLL_S@  # it may be away for a moment; the switch above ends what takes too long
  done
  export PYTHONPATH="$place"
fi
if [ -n @RAY@ ]; then  # a cluster of the user's that this machine shall belong to, too
  timeout @BOOT_S@ ray start --address @RAY@ > ray.log 2>&1 || { over "the Ray cluster could not be joined"; exit 1; }
fi
(
  @PYTHON@ -m sublet.runtime.agent --node @NODE@ --address @ADDRESS@ --token-file token --lease-file lease \
    --lease-s @LEASE_S@ --metadata @METADATA@ @MORE@ < /dev/null > agent.log 2>&1
  over "the agent has ended"
) &
