#!/bin/busybox sh
# First process of the guest of run.sh: makes a DAX mount of the NVDIMM, runs the stage named on the command line.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs -o size=256M tmpfs /dev/shm
mount -t tmpfs -o size=512M tmpfs /tmp
while read -r module; do
    insmod "/modules/$module.ko" || echo "TERRACE-DAX-NOTE no $module"
done </modules/order

stage=$(sed -n 's/.*terrace_stage=\([a-z]*\).*/\1/p' /proc/cmdline)
# Devices appear some time after their modules.
wait_for() {
    waited=0
    while [ ! -e "$1" ] && [ $waited -lt 100 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
}
wait_for /sys/bus/nd/devices/region0
if [ "$stage" = unit ]; then
    ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem || echo "TERRACE-DAX-NOTE ndctl failed"
    mkfs.ext4 -q -b 4096 /dev/pmem0 || echo "TERRACE-DAX-NOTE mkfs failed"
fi
wait_for /dev/pmem0
mount -t ext4 -o dax=always /dev/pmem0 /mnt/pmem || echo "TERRACE-DAX-NOTE mount failed"
grep /mnt/pmem /proc/mounts

export TERRACE_TEST_DAX_DIR=/mnt/pmem
# Temporary files of the tests lie beside their binary.
case "$stage" in
store) cp /bin/store-tests /tmp/tests ;;
*) cp /bin/storage-tests /tmp/tests ;;
esac
case "$stage" in
unit)
    /tmp/tests tier::nvm --include-ignored --skip flushed_extents_survive_a_crash
    echo "TERRACE-DAX-UNIT-DONE $?"
    umount /mnt/pmem
    ;;
write)
    TERRACE_TEST_DAX_STAGE=write /tmp/tests --include-ignored --nocapture flushed_extents_survive_a_crash
    ;;
check)
    TERRACE_TEST_DAX_STAGE=check /tmp/tests --include-ignored --nocapture flushed_extents_survive_a_crash
    echo "TERRACE-DAX-CHECK-DONE $?"
    ;;
store)
    acknowledged=$(sed -n 's/.*terrace_acknowledged=\([0-9]*\).*/\1/p' /proc/cmdline)
    wait_for /dev/vda
    if [ -n "$acknowledged" ]; then
        export TERRACE_TEST_ACKNOWLEDGED=$acknowledged
    else
        mkfs.ext4 -q -b 4096 /dev/vda || echo "TERRACE-DAX-NOTE mkfs failed"
    fi
    mount -t ext4 /dev/vda /mnt/disk && TERRACE_TEST_DISK_DIR=/mnt/disk /tmp/tests --include-ignored --nocapture a_store_survives_the_death_of_its_machine
    echo "TERRACE-DAX-STORE-ENDED $?"
    ;;
esac
sync
poweroff -f
