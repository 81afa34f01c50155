#!/bin/busybox sh
# The first program of the guest: runs /pugmark/command, or a shell if there is none, and sends what it left.
busybox mkdir -p /proc /sys /dev /tmp /out /root
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
# Files of the host that were in memory, too.
busybox mv /dev/shm /shm
busybox mount -t devtmpfs dev /dev
busybox ln -s /shm /dev/shm
busybox mount -t debugfs debug /sys/kernel/debug
busybox mount -t tracefs trace /sys/kernel/tracing
busybox --install -s /bin
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root TERM=linux
cd /root
# Linux samples less often if an interrupt takes long. Here that would be the host's time, and depend on its load.
echo 0 >/proc/sys/kernel/perf_cpu_time_max_percent
# Symbols, for perf.
echo 0 >/proc/sys/kernel/kptr_restrict
# Results leave by the second serial port, which passes every byte as it is.
stty -F /dev/ttyS1 raw -echo
exec 3>/dev/ttyS1
mark() { printf '\036pugmark %s\n' "$*" >&3; }
read -r up _ </proc/uptime
mark begin "$up"
if [ -e /pugmark/command ]; then
    sh /pugmark/command </dev/null >&3 2>&3
else
    echo "a shell in the guest; what is in /out when it ends goes to the host"
    setsid cttyhack sh </dev/console >/dev/console 2>&1
fi
status=$?
read -r up _ </proc/uptime
mark exit $status "$up"
send() { # FILE PATH
    path=$2 file=$1
    set -- $(wc -c <"$file") $(sha256sum <"$file")
    if [ "$1" -lt 65536 ]; then
        mark file "$1" "$2" "$path"
        cat "$file" >&3
    else
        # The host reads it where it is in memory.
        mark pages "$1" "$2" "$path"
        /pugmark/pages "$file" | head -c $((($1 + 4095) / 4096 * 8)) >&3
    fi
}
cd /out
find . -type f | while read -r file; do send "$file" "${file#./}"; done
# The code that the kernel gives every program; perf keeps a copy when it records.
for file in "$HOME/.debug/[vdso]"/*/vdso; do
    if [ -e "$file" ]; then send "$file" "[vdso]"; fi
done
# Which function is where, for what was traced from below.
if grep -q pugmark.symbols /proc/cmdline; then
    cat /proc/kallsyms >/tmp/symbols
    send /tmp/symbols "[kallsyms]"
fi
mark end
exec 3>&-
reboot -f
