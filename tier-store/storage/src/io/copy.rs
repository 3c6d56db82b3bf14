//! Copies images without filling the processor's caches.
//!
//! A move writes bytes that no query reads at once. Ordinary stores would first fetch every cache line of the target and evict
//! lines that queries work on; non-temporal stores do neither, and on persistent memory no line is left to be flushed. With two
//! threads they copy 1.1 to 1.3 times the bytes of `memcpy` (docs/design/moves.md).

use std::mem::MaybeUninit;

use crate::io::{QUANTUM_BYTES, let_others_run};

/// Smaller images are copied by ordinary stores: they are not worth the wait for the fence.
const LEAST_BYTES: usize = 16 << 10;

/// Copies `from` to the start of `to`, which is at least as long.
pub(crate) fn copy_past_caches(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    let Some(to) = to.get_mut(..from.len()) else { return };
    for (from, to) in from.chunks(QUANTUM_BYTES).zip(to.chunks_mut(QUANTUM_BYTES)) {
        copy_quantum(from, to);
        let_others_run();
    }
}

fn copy_quantum(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    if from.len() >= LEAST_BYTES {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: the processor has AVX.
            return unsafe { streamed(from, to) };
        }
    }
    to.write_copy_of_slice(from);
}

/// Copies slices of the same length with non-temporal stores.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn streamed(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    // SAFETY: any bytes are a line of bytes that need not be initialised.
    let (head, body, tail) = unsafe { to.align_to_mut::<Line>() };
    let (first, rest) = from.split_at(head.len());
    head.write_copy_of_slice(first);
    let (lines, last) = rest.split_at(size_of_val(body));
    let (source, target): (*const __m256i, *mut __m256i) = (lines.as_ptr().cast(), body.as_mut_ptr().cast());
    // Counted by hand: iterators are not inlined into a function for some processors only, which took a quarter of the time.
    let mut at = 0;
    while at < 2 * body.len() {
        // SAFETY: both have two halves of 32 bytes for each line, and lines are aligned to 64.
        unsafe {
            let low = _mm256_loadu_si256(source.add(at));
            let high = _mm256_loadu_si256(source.add(at + 1));
            _mm256_stream_si256(target.add(at), low);
            _mm256_stream_si256(target.add(at + 1), high);
        }
        at += 2;
    }
    tail.write_copy_of_slice(last);
    // Other threads that get the copy must see all stores.
    _mm_sfence();
}

/// A cache line.
#[cfg(target_arch = "x86_64")]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [MaybeUninit<u8>; 64]);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn any_bytes_to_any_place() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..200 {
            let len = [0, 1, 63, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 1, QUANTUM_BYTES + 100_000]
                [rng.random_range(0..7)];
            let from: Vec<u8> = (0..len + 64).map(|_| rng.random()).collect();
            let from = &from[rng.random_range(0..64)..][..len];
            let start = rng.random_range(0..130);
            let behind = rng.random_range(0..70);
            let mut to = vec![MaybeUninit::new(7); start + len + behind];
            copy_past_caches(from, &mut to[start..]);
            // SAFETY: all of it was written when it was made.
            let written: Vec<u8> = to.into_iter().map(|byte| unsafe { byte.assume_init() }).collect();
            assert_eq!(&written[start..start + len], from);
            assert!(written[..start].iter().chain(&written[start + len..]).all(|byte| *byte == 7));
        }
    }
}
