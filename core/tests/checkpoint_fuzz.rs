//! Damaged files never panic, and never make the loader allocate more than a small multiple of their size.

mod support;

use bytes::Bytes;
use proptest::prelude::*;
use safetensors::SafeTensors;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::*;
use whipsnake_core::checkpoint::{Checkpoint, Header};

/// Counts the bytes that the calling thread holds, and their peak.
struct Counting;

thread_local! {
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(change: impl Fn(usize) -> usize) {
    // The counter is gone while a thread ends; what happens then is not measured.
    let _ = HELD.try_with(|held| {
        let (now, peak) = held.get();
        let now = change(now);
        held.set((now, peak.max(now)));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|now| now.saturating_add(layout.size()));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(|now| now.saturating_sub(layout.size()));
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Opens, reads everything that opened, and returns the peak of what was held.
fn open_all(files: Vec<(String, Bytes)>) -> usize {
    let start = HELD.with(Cell::get).0;
    HELD.with(|held| held.set((start, start)));
    if let Ok(checkpoint) = Checkpoint::from_memory(files) {
        for weight in checkpoint.spec().weights() {
            if let Ok(stored) = pollster::block_on(checkpoint.weight(weight)) {
                for part in &stored.parts {
                    pollster::block_on(part.data.all()).unwrap();
                }
            }
        }
        for param in checkpoint.spec().params() {
            pollster::block_on(checkpoint.param(param)).unwrap();
        }
    }
    HELD.with(Cell::get).1 - start
}

fn bounded(files: Vec<(String, Bytes)>) -> std::result::Result<(), TestCaseError> {
    let size: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let peak = open_all(files);
    // Names and headers become strings and maps: a few times their own size.
    prop_assert!(peak <= 16 * size + 65_536, "{peak} bytes for files of {size}");
    Ok(())
}

/// A change of some bytes at one place.
#[derive(Clone, Debug)]
enum Damage {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Digits(prop::sample::Index, u64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, b)| Damage::Insert(at, b)),
        (at(), 1..64usize).prop_map(|(at, n)| Damage::Remove(at, n)),
        (at(), prop_oneof![any::<u64>(), 0..300u64, Just(1 << 31), Just(1 << 32), Just(u64::MAX)])
            .prop_map(|(at, n)| Damage::Digits(at, n)),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Self::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = at.index(bytes.len());
                let end = (at + count).min(bytes.len());
                bytes.drain(at..end);
            }
            // Replaces the next number, so that the text stays valid JSON.
            Self::Digits(at, number) => {
                let from = at.index(bytes.len());
                let digit = |b: &u8| b.is_ascii_digit();
                if let Some(start) = bytes[from..].iter().position(digit).map(|p| p + from) {
                    let length = bytes[start..].iter().position(|b| !digit(b));
                    let end = length.map_or(bytes.len(), |n| start + n);
                    bytes.splice(start..end, number.to_string().bytes());
                }
            }
        }
    }
}

/// The file with its header damaged and its length set right again, so that the damage is reached.
fn damaged_header(file: &Bytes, list: &[Damage]) -> Vec<u8> {
    let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let mut header = file[8..8 + length].to_vec();
    list.iter().for_each(|d| d.apply(&mut header));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend_from_slice(&file[8 + length..]);
    bytes
}

fn some_damage() -> impl Strategy<Value = Vec<Damage>> {
    prop::collection::vec(damage(), 1..4)
}

/// Changes one file of the small quantised checkpoint.
fn changed(name: &str, change: impl FnOnce(&Bytes) -> Vec<u8>) -> Vec<(String, Bytes)> {
    let mut files = Files::quantised("NVFP4", &["lm_head"]).files();
    let (_, bytes) = files.iter_mut().find(|(n, _)| n == name).unwrap();
    *bytes = change(bytes).into();
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        for name in ["model.safetensors", "config.json", "hf_quant_config.json"] {
            bounded(changed(name, |_| bytes.clone()))?;
        }
    }

    #[test]
    fn damaged_headers_are_read_or_refused(list in some_damage()) {
        bounded(changed("model.safetensors", |file| damaged_header(file, &list)))?;
    }

    #[test]
    fn damaged_configs_are_read_or_refused(list in some_damage()) {
        for name in ["config.json", "hf_quant_config.json"] {
            bounded(changed(name, |file| {
                let mut bytes = file.to_vec();
                list.iter().for_each(|d| d.apply(&mut bytes));
                bytes
            }))?;
        }
    }

    #[test]
    fn damaged_indexes_are_read_or_refused(list in some_damage()) {
        let tiny = Files::new(config());
        let (first, second, index) = tiny.shards();
        let mut index = index.to_string().into_bytes();
        list.iter().for_each(|d| d.apply(&mut index));
        let mut files = tiny.small();
        files.push((FIRST.into(), safetensors(&first)));
        files.push((SECOND.into(), safetensors(&second)));
        files.push((INDEX.into(), index.into()));
        bounded(files)?;
    }

    #[test]
    fn what_is_accepted_the_public_reader_accepts(list in some_damage()) {
        let file = safetensors(&Files::new(config()).tensors);
        let bytes = damaged_header(&file, &list);
        if let Ok(header) = Header::parse(&bytes, bytes.len() as u64) {
            let (length, public) = SafeTensors::read_metadata(&bytes).unwrap();
            let public = public.tensors();
            prop_assert_eq!(public.len(), header.tensors.len());
            for (name, info) in &header.tensors {
                let other = public[name];
                prop_assert_eq!((info.dtype, &info.shape), (other.dtype, &other.shape));
                let start = info.range.start as usize;
                prop_assert_eq!(start, other.data_offsets.0 + 8 + length);
            }
        }
    }
}
