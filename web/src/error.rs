//! Errors across the border.

use wasm_bindgen::{JsCast, JsValue};
use whipsnake_core::error::{Error, Kind};

/// A JavaScript `Error` with the text, its `name` says which part refused.
pub(crate) fn to_js(error: Error) -> JsValue {
    let name = match error.kind() {
        Kind::Op => "OpError",
        Kind::Request => "RequestError",
        Kind::Checkpoint => "CheckpointError",
        Kind::Text => "TextError",
        Kind::Device => "DeviceError",
        Kind::Io => "IoError",
    };
    let value = js_sys::Error::new(&error.to_string());
    value.set_name(name);
    value.into()
}

/// What JavaScript threw while it read a file.
pub(crate) fn from_js(value: &JsValue) -> Error {
    let text = match value.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => value.as_string().unwrap_or_else(|| format!("{value:?}")),
    };
    Error::new(Kind::Io, text)
}
