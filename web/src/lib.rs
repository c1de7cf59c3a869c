//! Whipsnake in the browser, through wasm and WebGPU.

/// JSON list of the adapters that the browser offers, each with its limits and whether it can run models.
///
/// # Errors
/// The list cannot be written as JSON.
pub async fn device_report_json() -> Result<String, serde_json::Error> {
    serde_json::to_string(&whipsnake_wgpu::devices_async().await)
}

/// [`device_report_json`] for JavaScript.
///
/// # Errors
/// A string that says why.
#[cfg(target_arch = "wasm32")]
#[wasm_bindgen::prelude::wasm_bindgen(js_name = deviceReport)]
pub async fn device_report() -> Result<String, wasm_bindgen::JsValue> {
    device_report_json().await.map_err(|error| wasm_bindgen::JsValue::from_str(&error.to_string()))
}
