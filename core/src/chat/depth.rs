//! Bounds how deep a template may nest its values.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// Messages and tool schemas that clients send stay well below.
const MAX_DEPTH: usize = 160;
/// Values looked at for one unit of fuel.
const VALUES_PER_FUEL: u64 = 4;

/// Passes a value on, unless it is nested too deep to be dropped or printed safely.
pub(super) fn limited_depth(state: &State, value: Value) -> Result<Value, Error> {
    // The walk below would use up an iterator that can be read once only.
    let value = if value.kind() == ValueKind::Iterable {
        value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?.into()
    } else {
        value
    };
    let mut seen = 0;
    check(state, &value, MAX_DEPTH, &mut seen)?;
    Ok(value)
}

fn check(state: &State, value: &Value, left: usize, seen: &mut u64) -> Result<(), Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    let Some(left) = left.checked_sub(1) else {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value is nested deeper than {MAX_DEPTH}"),
        ));
    };
    let map = value.kind() == ValueKind::Map;
    for item in value.try_iter()?.checked() {
        let item = item?;
        *seen += 1;
        if seen.is_multiple_of(VALUES_PER_FUEL) {
            state.consume_fuel(1)?;
        }
        if map {
            check(state, &value.get_item(&item)?, left, seen)?;
        } else {
            check(state, &item, left, seen)?;
        }
    }
    Ok(())
}
