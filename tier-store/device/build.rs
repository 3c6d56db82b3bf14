//! Compiles the kernels for the processor, so that the host device runs the same text as a GPU.

fn main() {
    for file in ["scan.c", "program.h", "kernel.h"] {
        println!("cargo::rerun-if-changed=kernels/{file}");
    }
    println!("cargo::rerun-if-env-changed=TERRACE_KERNEL_SANITIZER");
    let mut build = cc::Build::new();
    build.file("kernels/scan.c").std("c11").opt_level(2).warnings(true).extra_warnings(true).warnings_into_errors(true);
    // The memory of a block holds structures of several types.
    build.flag_if_supported("-fno-strict-aliasing");
    // Tests under AddressSanitizer: what it or the compiler finds undefined stops the process.
    if std::env::var_os("TERRACE_KERNEL_SANITIZER").is_some() {
        build.flag("-fsanitize=address,undefined").flag("-fsanitize-undefined-trap-on-error");
    }
    build.compile("terrace_kernels");
}
