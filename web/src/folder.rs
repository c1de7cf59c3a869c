//! A checkpoint whose files JavaScript reads: over HTTP by ranges, or from a folder that was dropped on the page.

use crate::error::from_js;
use bytes::Bytes;
use js_sys::{Array, Uint8Array};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use wasm_bindgen::prelude::*;
use whipsnake_core::checkpoint::{
    Checkpoint, Header, INDEX, LENGTH_BYTES, SINGLE, SMALL_FILES, named_shards, shards,
};
use whipsnake_core::error::{Error, Result};
use whipsnake_core::weight::{LocalFuture, Source};

/// Bytes that the first read of a file asks for: most headers fit, and a small file comes whole.
const FIRST_READ: u64 = 64 << 10;

#[wasm_bindgen]
extern "C" {
    /// The files of a checkpoint, as `js/folder.js` reads them.
    pub type Folder;

    /// `[[name, bytes], ...]` of those of `names` that are there.
    #[wasm_bindgen(method, catch)]
    async fn small(this: &Folder, names: Vec<String>) -> std::result::Result<JsValue, JsValue>;

    /// Names of all files, where the folder can be listed.
    #[wasm_bindgen(method)]
    fn names(this: &Folder) -> Option<Vec<String>>;

    /// Bytes of a file; `undefined` where there is none.
    #[wasm_bindgen(method, catch)]
    async fn size(this: &Folder, name: String) -> std::result::Result<JsValue, JsValue>;

    /// Bytes `start..end` of a file.
    #[wasm_bindgen(method, catch)]
    async fn read(
        this: &Folder,
        name: String,
        start: f64,
        end: f64,
    ) -> std::result::Result<JsValue, JsValue>;
}

/// Opens the checkpoint in `folder`: small files and headers are read, weights are not.
pub(crate) async fn open(folder: Folder) -> Result<Checkpoint> {
    let metadata = small_files(&folder).await?;
    let index = metadata.iter().find(|(name, _)| name == INDEX).map(|(_, bytes)| &bytes[..]);
    let mut names: BTreeSet<String> = folder.names().into_iter().flatten().collect();
    names.extend(metadata.iter().map(|(name, _)| name.clone()));
    let wanted = match index {
        Some(index) => named_shards(index)?,
        None => BTreeSet::from([SINGLE.to_owned()]),
    };
    let mut sizes = Vec::new();
    for name in &wanted {
        let size = folder.size(name.clone()).await.map_err(|e| from_js(&e))?;
        if let Some(size) = size.as_f64() {
            names.insert(name.clone());
            // Sizes of files are whole numbers below 2^53.
            sizes.push((name.clone(), size as u64));
        }
    }
    let names = shards(&names, index)?;
    let ranges = Ranges { folder, names };
    let mut headers = Vec::new();
    for (file, name) in ranges.names.iter().enumerate() {
        let size = sizes.iter().find(|(n, _)| n == name).map_or(0, |(_, size)| *size);
        let header = ranges.header(file, size).await.map_err(|e| e.within(name))?;
        headers.push((name.clone(), header));
    }
    Checkpoint::from_source(metadata, headers, Rc::new(ranges))
}

async fn small_files(folder: &Folder) -> Result<Vec<(String, Bytes)>> {
    let names = SMALL_FILES.map(str::to_owned).to_vec();
    let found = folder.small(names).await.map_err(|e| from_js(&e))?;
    let entry = |pair: JsValue| {
        let pair = Array::from(&pair);
        let bytes = Uint8Array::new(&pair.get(1)).to_vec();
        (pair.get(0).as_string().unwrap_or_default(), Bytes::from(bytes))
    };
    Ok(Array::from(&found).iter().map(entry).collect())
}

/// The files that hold tensors, read by ranges.
struct Ranges {
    folder: Folder,
    names: Vec<String>,
}

impl Ranges {
    async fn header(&self, file: usize, size: u64) -> Result<Header> {
        let mut first = self.read(file, 0..size.min(FIRST_READ)).await?.to_vec();
        let needed = Header::bytes_needed(&first, size)?;
        let have = first.len() as u64;
        if have < needed.max(LENGTH_BYTES) {
            first.extend_from_slice(&self.read(file, have..needed).await?);
        }
        Header::parse(&first, size)
    }
}

impl Source for Ranges {
    fn read(&self, file: usize, range: Range<u64>) -> LocalFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let name = self.names.get(file).cloned().unwrap_or_default();
            if range.is_empty() {
                return Ok(Bytes::new());
            }
            let (start, end) = (range.start as f64, range.end as f64);
            let value = self.folder.read(name.clone(), start, end).await;
            let bytes = Uint8Array::new(&value.map_err(|e| from_js(&e))?).to_vec();
            if bytes.len() as u64 != range.end - range.start {
                return Err(Error::checkpoint(format!(
                    "{name}: {} bytes came of {} to {}; the file is truncated or changed, download it again",
                    bytes.len(),
                    range.start,
                    range.end
                )));
            }
            Ok(bytes.into())
        })
    }
}
