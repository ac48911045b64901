// SPDX-License-Identifier: Apache-2.0
//! Copies parts of several buffers behind each other, as Arrow stores binary values.

use std::sync::Mutex;

/// Memory of values that nobody needs any more. The system clears each page that it gives to a process, which takes as
/// long as to copy the values there. A task fills one buffer while Spark reads the one before it.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const MAX_SPARE: usize = 2; // buffers
const SPARE_SIZES: std::ops::RangeInclusive<usize> = 1 << 20..=16 << 20; // bytes of each

/// Some parts of `data`: `data[starts[n]..ends[n]]` for each n.
pub struct Parts<'a> {
    pub data: &'a [u8],
    pub starts: Vec<i64>,
    pub ends: Vec<i64>,
}

/// Returns where each part begins in the values, where the last one ends, and the values. Returns `None` for parts that
/// are not in their buffer, or more than 2 GiB of values.
#[must_use]
pub fn gather(all: &[Parts]) -> Option<(Vec<i32>, Vec<u8>)> {
    let count: usize = all.iter().map(|parts| parts.starts.len()).sum();
    let mut offsets: Vec<i32> = Vec::with_capacity(count + 1);
    offsets.push(0);
    let mut total: i32 = 0;
    for parts in all {
        if parts.starts.len() != parts.ends.len() {
            return None;
        }
        for (start, end) in parts.starts.iter().zip(&parts.ends) {
            total = total.checked_add(i32::try_from(end.checked_sub(*start)?).ok().filter(|size| *size >= 0)?)?;
            offsets.push(total);
        }
    }
    let mut values = memory(usize::try_from(total).ok()?);
    for parts in all {
        for (start, end) in parts.starts.iter().zip(&parts.ends) {
            let (start, end) = (usize::try_from(*start).ok()?, usize::try_from(*end).ok()?);
            values.extend_from_slice(parts.data.get(start..end)?);
        }
    }
    Some((offsets, values))
}

/// Takes memory of values back, for later ones.
pub fn give_back(mut values: Vec<u8>) {
    values.clear();
    if SPARE_SIZES.contains(&values.capacity()) {
        if let Ok(mut spare) = SPARE.lock() {
            if spare.len() < MAX_SPARE {
                spare.push(values);
            }
        }
    }
}

/// Returns an empty vector with room for at least `size` bytes.
fn memory(size: usize) -> Vec<u8> {
    let spare = SPARE_SIZES.contains(&size).then(|| SPARE.lock().ok()?.pop()).flatten();
    spare.filter(|spare| spare.capacity() >= size).unwrap_or_else(|| Vec::with_capacity(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(data: &'a [u8], starts: &[i64], ends: &[i64]) -> Parts<'a> {
        Parts { data, starts: starts.to_vec(), ends: ends.to_vec() }
    }

    #[test]
    fn copies_the_parts_of_all_buffers() {
        let all = [parts(b"abcdef", &[1, 3, 5], &[3, 3, 6]), parts(b"", &[], &[]), parts(b"xyz", &[0], &[2])];
        let (offsets, values) = gather(&all).unwrap();
        assert_eq!(offsets, [0, 2, 2, 3, 5]);
        assert_eq!(values, b"bcfxy");
    }

    #[test]
    fn refuses_parts_that_are_not_in_their_buffer() {
        for (starts, ends) in [(vec![0], vec![4]), (vec![2], vec![1]), (vec![-1], vec![1]), (vec![0], vec![])] {
            assert!(gather(&[parts(b"abc", &starts, &ends)]).is_none());
        }
        assert!(gather(&[parts(b"abc", &[i64::MIN], &[i64::MAX])]).is_none());
    }
}
