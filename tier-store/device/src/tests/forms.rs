//! Layouts of structures and of packed columns.

use fastlanes::BitPacking;

use crate::column::Packed;
use crate::host::compiled_layout;
use crate::layout::{Chunk, Column, Factor, Join, Key, Measure, Program, Step, Stream};

#[test]
fn structures_are_those_that_the_kernels_read() {
    let ours = [
        Column::offsets(),
        Chunk::offsets(),
        Join::offsets(),
        Step::offsets(),
        Factor::offsets(),
        Measure::offsets(),
        Key::offsets(),
        Program::offsets(),
        Stream::offsets(),
    ];
    assert_eq!(ours.concat(), compiled_layout());
}

#[test]
fn packed_blocks_are_those_of_fastlanes() {
    for bits in 1..=32_usize {
        let most = u32::MAX >> (32 - bits);
        let numbers: Vec<u32> = (0..1024_u32).map(|row| row.wrapping_mul(2_654_435_761) & most).collect();
        // Both ends of the range are there, so that the width is this one.
        let numbers = [&[0, most], &numbers[2..]].concat();
        let values: Vec<i64> = numbers.iter().map(|number| i64::from(*number) - 1_000_000).collect();
        let packed = Packed::new(&values).unwrap();
        let mut expected = vec![0_u32; bits * 32];
        // SAFETY: not needed by us: the crate's function trusts the lengths, which are a block's and `bits` words a lane.
        #[allow(unsafe_code)]
        unsafe {
            u32::unchecked_pack(bits, &numbers, &mut expected);
        }
        assert_eq!(packed.block(0, 0), (expected.as_slice(), bits as u32));
    }
}

#[test]
fn pages_take_the_bits_of_their_own_values() {
    let values: Vec<i64> = (0..20_000).map(|row| if row < 8192 { 5 } else { row }).collect();
    let packed = Packed::new(&values).unwrap();
    assert_eq!((packed.block(0, 0).1, packed.block(1, 0).1, packed.block(2, 0).1), (0, 13, 12));
    assert!(Packed::new(&[0, 1 << 32]).is_none());
    assert!(Packed::new(&[i64::MIN, i64::MAX]).is_none());
    assert!(Packed::new(&[i64::MAX - 7, i64::MAX]).is_some());
    assert_eq!(Packed::new(&[]).unwrap().bytes(), 0);
}

#[test]
fn the_ptx_is_of_a_version_that_drivers_of_cuda_13_0_read() {
    let ptx = include_str!("../../kernels/scan.ptx");
    let version = ptx.lines().find_map(|line| line.strip_prefix(".version ")).unwrap();
    assert_eq!(version, "9.0");
    assert!(ptx.contains(".target sm_75"));
}
