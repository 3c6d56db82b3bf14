//! Values of 8 bytes gathered from a shared map, as from the emulated NVM tier, with and without software prefetch.
//!
//! `rustc -O --edition 2024 -o gather docs/design/cpu/gather.rs && ./gather`: ns per value, medians of nine rounds in turn.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::hint::black_box;
use std::time::Instant;

unsafe extern "C" {
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn ftruncate(file: c_int, len: i64) -> c_int;
    fn mmap(at: *mut c_void, len: usize, protect: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
}

const VALUES: usize = 1 << 28;
const GATHERED: usize = 1 << 22;
const AHEAD: [usize; 5] = [0, 8, 16, 32, 64];

fn gather(values: &[u64], positions: &[u32], out: &mut [u64], ahead: usize) {
    if ahead == 0 {
        for (out, at) in out.iter_mut().zip(positions) {
            *out = values[*at as usize];
        }
        return;
    }
    for (number, (out, at)) in out.iter_mut().zip(positions).enumerate() {
        if let Some(next) = positions.get(number + ahead) {
            // SAFETY: a prefetch of any address does no harm; this one lies in `values`.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(*next as usize).cast()) };
        }
        *out = values[*at as usize];
    }
}

fn main() {
    // SAFETY: a new shared map of a new file of this length, used by this thread alone until the end.
    let values: &mut [u64] = unsafe {
        let file = memfd_create(c"gather".as_ptr(), 0);
        assert!(file >= 0 && ftruncate(file, VALUES as i64 * 8) == 0);
        let at = mmap(std::ptr::null_mut(), VALUES * 8, 3, 1, file, 0);
        assert!(at as isize != -1);
        std::slice::from_raw_parts_mut(at.cast(), VALUES)
    };
    values.iter_mut().enumerate().for_each(|(number, value)| *value = number as u64);
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 36) as u32
    };
    let mut out = vec![0; GATHERED];
    for pattern in ["random", "ascending"] {
        let mut times = AHEAD.map(|_| Vec::new());
        for _ in 0..9 {
            let mut positions: Vec<u32> = (0..GATHERED).map(|_| random()).collect();
            if pattern == "ascending" {
                positions.sort_unstable();
            }
            for (ahead, times) in AHEAD.iter().zip(&mut times) {
                let start = Instant::now();
                gather(values, &positions, &mut out, *ahead);
                times.push(start.elapsed().as_secs_f64() * 1e9 / GATHERED as f64);
                assert!(out.iter().zip(&positions).all(|(value, at)| *value == u64::from(*at)));
                black_box(&out);
            }
        }
        for (ahead, times) in AHEAD.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            println!("{pattern:<10} {ahead:>3} ahead: {:.2} ns, {:.2} to {:.2}", times[4], times[0], times[8]);
        }
    }
}
