//! The `terrace` binary: everything is in the library `terrace-server`, so that tests can start a server in their own
//! process. A package of its own, because its build script looks at each commit: only these lines are built anew for it.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use terrace_heap::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator<MiMalloc> = CountingAllocator::new(MiMalloc);

fn main() -> ExitCode {
    terrace_server::main(env!("SHOWN_VERSION"))
}
