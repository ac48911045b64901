// SPDX-License-Identifier: Apache-2.0
//! Finds the messages of a reply to a fetch (`GetMessageResponseB2C`) and leaves their payloads where they are.
//!
//! Java writes each message in one shape. A reply in any other shape is left to the parser of protobuf, which is the
//! specification: all functions return `None` then.
//!
//! ```text
//! messages (22 size): messageId (08 varint), checkSum (10 varint), payLoadData (1a size bytes), flag (20 byte)
//! ```
//!
//! wire: `GetMessageResponseB2C`, `TransferedMessage`

const MESSAGES: u8 = 0x22;
const ERR_MSG: u8 = 0x1a;
const MESSAGE_ID: u8 = 0x08;
const CHECK_SUM: u8 = 0x10;
const PAYLOAD: u8 = 0x1a;
const FLAG: u8 = 0x20;
const WIRE_TYPE: u8 = 7; // these bits of a tag
const VARINT: u8 = 0;

const MAX_ID_WIDTH: u32 = 9; // bytes; longer ones are negative
const MAX_WIDTH: u32 = 5; // bytes of a 32-bit number
const LENGTH_BITS: u32 = 28;
const CHECK_SUM_MASK: u32 = 0x7fff_ffff;

/// Messages by columns: element n of each vector is of message n, whose payload is `data[starts[n]..ends[n]]`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Where the first message begins, with its tag.
    pub first: usize,
    /// Where the last one ends.
    pub last: usize,
    pub ids: Vec<i64>,
    pub check_sums: Vec<i64>,
    pub flags: Vec<u8>,
    pub starts: Vec<i64>,
    pub ends: Vec<i64>,
    /// 1 if the check sum is that of the payload, else 0.
    pub intact: Vec<u8>,
}

/// Returns the messages, at least one, of the reply in `data[begin..]`.
#[must_use]
pub fn split(data: &[u8], begin: usize) -> Option<Messages> {
    let first = first_message(data, begin)?;
    let mut found = Messages { first, ..Messages::default() };
    let mut at = first;
    while data.get(at) == Some(&MESSAGES) {
        let (size, begin) = varint(data, at + 1, MAX_WIDTH)?;
        if size >> LENGTH_BITS != 0 {
            return None;
        }
        let end = begin.checked_add(usize::try_from(size).ok()?)?;
        found.add(data.get(..end)?, begin)?;
        at = end;
    }
    found.last = at;
    Some(found)
}

impl Messages {
    /// Adds the message from `begin` to the end of `data`.
    fn add(&mut self, data: &[u8], begin: usize) -> Option<()> {
        let (id, at) = number(data, begin, MESSAGE_ID, MAX_ID_WIDTH)?;
        let (check_sum, at) = number(data, at, CHECK_SUM, MAX_WIDTH)?;
        let (size, start) = number(data, at, PAYLOAD, MAX_WIDTH)?;
        let check_sum = u32::try_from(check_sum).ok().filter(|sum| *sum <= CHECK_SUM_MASK)?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        let payload = data.get(start..end)?;
        let [FLAG, flag @ ..0x80] = data[end..] else {
            return None;
        };
        self.ids.push(i64::try_from(id).ok()?);
        self.check_sums.push(i64::from(check_sum));
        self.flags.push(flag);
        self.starts.push(i64::try_from(start).ok()?);
        self.ends.push(i64::try_from(end).ok()?);
        self.intact.push(u8::from(crc32fast::hash(payload) & CHECK_SUM_MASK == check_sum));
        Some(())
    }
}

/// Returns where the first message begins, from `at` on. The fields before it are numbers and a short text.
fn first_message(data: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *data.get(at)? {
            MESSAGES => return Some(at),
            ERR_MSG => {
                let size = *data.get(at + 1)?;
                if size >= 0x80 {
                    return None;
                }
                at += 2 + usize::from(size);
            }
            tag if tag < 0x80 && tag & WIRE_TYPE == VARINT => {
                at += 1;
                while *data.get(at)? >= 0x80 {
                    at += 1;
                }
                at += 1;
            }
            _ => return None,
        }
    }
}

/// Returns the number behind the tag at `at`, and where it ends.
fn number(data: &[u8], at: usize, tag: u8, max_width: u32) -> Option<(u64, usize)> {
    if *data.get(at)? == tag {
        varint(data, at + 1, max_width)
    } else {
        None
    }
}

/// Returns the number at `at`, and where it ends.
fn varint(data: &[u8], at: usize, max_width: u32) -> Option<(u64, usize)> {
    let mut number = 0;
    let mut shift = 0;
    for (index, byte) in data.get(at..)?.iter().take(max_width as usize).enumerate() {
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some((number, at + index + 1));
        }
        shift += 7;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &[u8], payload: &[u8], flag: u8) -> Vec<u8> {
        let sum = crc32fast::hash(payload) & CHECK_SUM_MASK;
        let mut inner = vec![MESSAGE_ID];
        inner.extend(id);
        inner.push(CHECK_SUM);
        push_varint(&mut inner, u64::from(sum));
        inner.push(PAYLOAD);
        push_varint(&mut inner, payload.len() as u64);
        inner.extend(payload);
        inner.extend([FLAG, flag]);
        let mut outer = vec![MESSAGES];
        push_varint(&mut outer, inner.len() as u64);
        outer.extend(inner);
        outer
    }

    fn push_varint(to: &mut Vec<u8>, mut number: u64) {
        while number >= 0x80 {
            to.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        to.push(number.to_le_bytes()[0]);
    }

    #[test]
    fn finds_messages_between_other_fields() {
        let mut data = vec![0xff, 0x08, 0x01, 0x10, 0xc8, 0x01, ERR_MSG, 2, b'O', b'K'];
        let first = data.len();
        data.extend(message(&[5], b"abc", 0));
        data.extend(message(&[0x80, 1], &[7; 300], 1));
        let last = data.len();
        data.extend([0x28, 9]);
        let found = split(&data, 1).unwrap();
        assert_eq!((found.first, found.last), (first, last));
        assert_eq!(found.ids, [5, 128]);
        assert_eq!(found.flags, [0, 1]);
        assert_eq!(found.intact, [1, 1]);
        let bounds = found.starts.iter().zip(&found.ends);
        let sizes: Vec<i64> = bounds.map(|(start, end)| end - start).collect();
        assert_eq!(sizes, [3, 300]);
    }

    #[test]
    fn notices_a_wrong_check_sum() {
        let mut data = message(&[5], b"abc", 0);
        let at = data.len() - 3;
        data[at] ^= 1;
        assert_eq!(split(&data, 0).unwrap().intact, [0]);
    }

    #[test]
    fn leaves_what_is_cut_or_has_another_shape() {
        let whole = message(&[5], b"abc", 0);
        for end in 0..whole.len() {
            assert_eq!(split(&whole[..end], 0), None, "{end} bytes");
        }
        assert_eq!(split(&message(&[0xff; 10], b"abc", 0), 0), None);
        assert_eq!(split(&message(&[5], b"abc", 0x80), 0), None);
        assert_eq!(split(&[0x0d, 1, 2, 3, 4], 0), None);
    }
}
