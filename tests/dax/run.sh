#!/usr/bin/env bash
# Tests the NVM tier on real DAX: boots a guest with an emulated NVDIMM, mounts it with -o dax and runs the tier's
# tests inside, MAP_SYNC and cache-line flushes included. Then a crash: extents are written and flushed, the guest is
# killed, and a second boot on the same NVDIMM compares them. Then a store works on a disk of the guest and the NVDIMM
# until the guest is killed, three times; each next boot compares all rows with what was acknowledged on the console.
#
# Needs root for apt-get the first time; software emulation is enough, no KVM. The kernel is kept in
# TERRACE_TEST_CACHE (default tests/.work).
# Prints "PASS dax" or "FAIL dax: why", and exits with 0 or 1.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
work="${TERRACE_TEST_CACHE:-$top/tests/.work}/dax"
mkdir -p "$work"
guest_pid=""

fail() {
    echo "FAIL dax: $*"
    exit 1
}

stop_guest() {
    if [ -n "$guest_pid" ]; then
        kill -9 "$guest_pid" 2>/dev/null || true
        wait "$guest_pid" 2>/dev/null || true
        guest_pid=""
    fi
}
trap stop_guest EXIT

install_packages() {
    local missing=() pair
    for pair in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static ndctl:ndctl cpio:cpio \
        mkfs.ext4:e2fsprogs depmod:kmod; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ -f /bin/busybox ] || missing+=(busybox-static)
    if [ ${#missing[@]} -gt 0 ]; then
        timeout 60 apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive timeout 400 apt-get install -y -qq --no-install-recommends "${missing[@]}" \
            >"$work/apt.log" 2>&1 || fail "apt-get install ${missing[*]}: see $work/apt.log"
    fi
}

# The distribution's kernel, unpacked, not installed.
fetch_kernel() {
    [ -f "$work/vmlinuz" ] && [ -d "$work/kernel" ] && return
    local package
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -1)
    [ -n "$package" ] || fail "apt knows no kernel package"
    (cd "$work" && rm -f linux-image-*.deb && timeout 300 apt-get download -qq "$package" >"$work/apt.log" 2>&1) ||
        fail "cannot download $package: see $work/apt.log"
    rm -rf "$work/kernel"
    dpkg-deb -x "$work"/linux-image-*.deb "$work/kernel"
    rm -f "$work"/linux-image-*.deb
    cp "$work"/kernel/boot/vmlinuz-* "$work/vmlinuz"
}

# built_tests PACKAGE: the binary with the unit tests of a package, as cargo named it.
built_tests() {
    sed -n "/\"package_id\":\"[^\"]*$1@/ s/.*\"test\":true.*\"executable\":\"\([^\"]*\)\".*/\1/p" "$work/cargo.json" | tail -1
}

# The unit tests of two crates: the binaries that the Rust tests use, their libraries travel with them.
build_tests() {
    # The whole workspace, as the Rust tests: one package alone would build its dependencies with other features.
    (cd "$top" && timeout 3000 cargo test --locked --workspace --release --no-run \
        --message-format json >"$work/cargo.json" 2>"$work/cargo.log") || fail "cargo test --no-run: see $work/cargo.log"
    storage_tests=$(built_tests terrace-storage)
    store_tests=$(built_tests terrace-tier-store)
    [ -x "$storage_tests" ] && [ -x "$store_tests" ] || fail "cargo named no test binaries"
}

# add_with_libraries ROOT PROGRAM NAME
add_with_libraries() {
    local root=$1 program=$2 library
    cp "$program" "$root/bin/$3"
    { ldd "$program" || true; } | { grep -o '/[^ ]*' || true; } | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

build_initramfs() {
    local root="$work/root" modules module file
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,mnt/pmem,mnt/disk,modules}
    cp /bin/busybox "$root/bin/busybox"
    add_with_libraries "$root" "$(command -v ndctl)" ndctl
    add_with_libraries "$root" "$(command -v mkfs.ext4)" mkfs.ext4
    add_with_libraries "$root" "$storage_tests" storage-tests
    add_with_libraries "$root" "$store_tests" store-tests
    # In the order of their dependencies; what the kernel has built in is simply not found.
    modules="crc16 crc32c_generic libcrc32c mbcache jbd2 ext4 libnvdimm nd_btt nd_pmem nfit"
    modules="$modules virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk"
    for module in $modules; do
        file=$(find "$work/kernel/lib/modules" -name "$module.ko" | head -1)
        if [ -n "$file" ]; then
            cp "$file" "$root/modules/"
            echo "$module" >>"$root/modules/order"
        fi
    done
    cp "$here/init.sh" "$root/init"
    chmod +x "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 >"$work/initramfs.gz")
}

# boot STAGE SECONDS MARKER [ACKNOWLEDGED]: runs the guest until it prints MARKER or powers off; its console is in
# STAGE.log.
boot() {
    local stage=$1 seconds=$2 marker=$3 acknowledged=${4:-} log="$work/$1.log"
    : >"$log"
    qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -machine q35,nvdimm=on -m 2G,slots=2,maxmem=4G \
        -object "memory-backend-file,id=mem1,share=on,mem-path=$work/nvdimm.img,size=512M" \
        -device nvdimm,memdev=mem1,id=nv1 -drive "file=$work/disk.img,if=virtio,format=raw" -kernel "$work/vmlinuz" -initrd "$work/initramfs.gz" \
        -append "console=ttyS0 quiet panic=1 terrace_stage=$stage terrace_acknowledged=$acknowledged" \
        -display none -serial "file:$log" -monitor none -no-reboot </dev/null 2>"$work/qemu.log" &
    guest_pid=$!
    local deadline=$((SECONDS + seconds))
    while [ $SECONDS -lt $deadline ]; do
        grep -q "$marker" "$log" && return 0
        kill -0 "$guest_pid" 2>/dev/null || break
        sleep 0.2
    done
    grep -q "$marker" "$log" && return 0
    tail -n 40 "$log" "$work/qemu.log"
    fail "stage '$stage' did not reach '$marker' in $seconds s (console: $log)"
}

install_packages
fetch_kernel
build_tests
build_initramfs
rm -f "$work/nvdimm.img"
truncate -s 512M "$work/nvdimm.img"
rm -f "$work/disk.img"
truncate -s 1G "$work/disk.img"

boot unit 400 "TERRACE-DAX-UNIT-DONE"
grep "^test " "$work/unit.log" | tr -d '\r'
grep -q "TERRACE-DAX-UNIT-DONE 0" "$work/unit.log" || { tail -40 "$work/unit.log"; fail "tests failed in the guest"; }
grep -q "tests::a_dax_mount_grants_map_sync ... ok" "$work/unit.log" || fail "MAP_SYNC was not asserted in the guest"
stop_guest

boot write 300 "TERRACE-DAX-WRITTEN 200"
stop_guest # without warning: nothing is synced or unmounted
boot check 300 "TERRACE-DAX-CHECK-DONE"
grep -q "TERRACE-DAX-SURVIVED 200" "$work/check.log" || { tail -20 "$work/check.log"; fail "flushed extents were lost"; }
stop_guest

# The last operation of the store whose acknowledgement is on the console, whole.
acknowledged() {
    tr -d '\r' <"$work/store.log" | sed -n 's/^TERRACE-STORE-DID \([0-9]*\)$/\1/p' | tail -1
}

last=""
for round in 1 2 3 4; do
    # The first boot makes the store; each next one checks it, then goes on. It dies at no particular point.
    if [ -z "$last" ]; then marker="TERRACE-STORE-DID 4"; else marker="TERRACE-STORE-DID $((last + 3 + RANDOM % 40))\b"; fi
    boot store 300 "$marker" "$last"
    stop_guest
    if [ -n "$last" ]; then
        grep -q "TERRACE-STORE-CHECKED $last " "$work/store.log" || { tail -20 "$work/store.log"; fail "the store was not checked"; }
    fi
    last=$(acknowledged)
    [ -n "$last" ] || fail "no operation of the store was acknowledged"
done
rm -f "$work/nvdimm.img" "$work/disk.img"
echo "PASS dax: MAP_SYNC granted, NVM tier tests passed in the guest, 200 flushed extents survived a kill," \
    "a store survived 3 kills over $((last + 1)) operations"
