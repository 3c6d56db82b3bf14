//! The `terrace` binary: everything is in the library, so that tests can start a server in their own process.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    terrace_server::main()
}
