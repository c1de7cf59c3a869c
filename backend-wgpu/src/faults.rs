//! Errors that the driver reports on its own time, kept until the next call can return them.

use std::sync::{Arc, Mutex, PoisonError};
use whipsnake_core::error::{Error, Result};

/// What helps where a device is gone.
const REMEDY: &str = match cfg!(target_arch = "wasm32") {
    false => "restart the program, or use another --device",
    true => "open the model again",
};

#[derive(Default)]
struct Heard {
    /// The first error since the last check.
    error: Option<String>,
    /// Why the device is gone; it stays gone.
    lost: Option<String>,
}

/// What a device has reported outside any error scope.
#[derive(Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<Heard>>);

impl Faults {
    /// Listens to `device`.
    pub fn attach(device: &wgpu::Device) -> Self {
        let faults = Self::default();
        let heard = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            heard.with(|h| {
                h.error.get_or_insert_with(|| describe(&error));
            });
        }));
        let heard = faults.clone();
        device.set_device_lost_callback(move |reason, text| {
            // Some drivers give no text.
            let why = format!("{reason:?}, {text}").to_lowercase();
            heard.with(|h| h.lost = Some(why.trim_end_matches(", ").into()));
        });
        faults
    }

    fn with<T>(&self, act: impl FnOnce(&mut Heard) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what was heard since the last call.
    pub fn check(&self) -> Result<()> {
        let (lost, error) = self.with(|h| (h.lost.clone(), h.error.take()));
        if let Some(why) = lost {
            return Err(Error::device(format!("wgpu: the device was lost ({why}); {REMEDY}")));
        }
        error.map_or(Ok(()), |text| Err(Error::device(text)))
    }
}

/// A driver's error as one line.
pub(crate) fn describe(error: &wgpu::Error) -> String {
    let (what, text) = match error {
        wgpu::Error::OutOfMemory { .. } => return "wgpu: the device is out of memory".into(),
        wgpu::Error::Validation { description, .. } => ("validation", description),
        wgpu::Error::Internal { description, .. } => ("internal", description),
    };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("wgpu: {what} error: {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_returned_once_and_a_lost_device_always() {
        let faults = Faults::default();
        assert!(faults.check().is_ok());
        faults.with(|h| h.error = Some("wgpu: validation error: bad".into()));
        assert_eq!(faults.check().unwrap_err().to_string(), "wgpu: validation error: bad");
        assert!(faults.check().is_ok());
        faults.with(|h| h.lost = Some("unknown, reset".into()));
        let text = "wgpu: the device was lost (unknown, reset); restart the program, or use another --device";
        assert_eq!(faults.check().unwrap_err().to_string(), text);
        assert_eq!(faults.check().unwrap_err().to_string(), text);
    }
}
