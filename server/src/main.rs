//! The `terrace` binary: everything is in the library, so that tests can start a server in their own process.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use terrace_heap::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator<MiMalloc> = CountingAllocator::new(MiMalloc);

fn main() -> ExitCode {
    terrace_server::main()
}
