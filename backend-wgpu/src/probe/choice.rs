//! Which adapter runs: the one that was asked for, or discrete before integrated before software.

use super::{DeviceLimits, DeviceReport, Verdict};
use whipsnake_core::error::{Error, Result};

/// What to say where there is no adapter at all.
const NO_ADAPTER: &str = match cfg!(target_arch = "wasm32") {
    false => {
        "wgpu: no adapter found; install a Vulkan driver (mesa-vulkan-drivers for a software one) or use --backend cpu"
    }
    true => {
        "webgpu: this browser offers no adapter; use a browser with WebGPU over https or localhost, or the cpu back end"
    }
};

/// The adapter that is chosen.
///
/// # Errors
/// There is none, none that runs, or none that `selector` means; the text lists what there is.
pub fn pick(reports: &[DeviceReport], selector: Option<&str>) -> Result<usize> {
    if reports.is_empty() {
        return Err(Error::device(NO_ADAPTER));
    }
    let line = |r: &DeviceReport| match &r.verdict {
        Verdict::Rejected(why) => format!("[{}] {}: {why}", r.index, r.name),
        _ => format!("[{}] {}", r.index, r.name),
    };
    let list = || reports.iter().map(line).collect::<Vec<_>>().join("; ");
    reports.iter().position(|r| r.verdict == Verdict::Chosen).ok_or_else(|| {
        let what = match selector {
            Some(wanted) => format!("no usable device matches {wanted:?}"),
            None => "no usable device".into(),
        };
        Error::device(format!("wgpu: {what}; there are: {}", list()))
    })
}

/// Position in the order of preference; the browser reports `other` for what it recommends.
fn rank(kind: &str) -> usize {
    ["discrete", "integrated", "virtual", "other", "software"]
        .iter()
        .position(|k| *k == kind)
        .unwrap_or(usize::MAX)
}

/// Gives every report its verdict.
pub fn judge(reports: &mut [DeviceReport], selector: Option<&str>) {
    let hardware = reports.iter().find(|r| r.kind != "software").map(|r| r.name.clone());
    for report in &mut *reports {
        let software = report.kind == "software" && selector.is_none();
        if let Some(why) = shortfall(&report.limits) {
            report.verdict = Verdict::Rejected(why);
        } else if let Some(name) = hardware.as_ref().filter(|_| software) {
            report.verdict = Verdict::Rejected(format!(
                "a software adapter, used only on request while {name} exists; --device {} takes it",
                report.index
            ));
        }
    }
    let matches = |r: &&mut DeviceReport| {
        !matches!(r.verdict, Verdict::Rejected(_)) && selector.is_none_or(|s| selects(s, r))
    };
    let best = reports.iter_mut().filter(matches).min_by_key(|r| (rank(r.kind), r.index));
    let Some(best) = best else { return };
    best.verdict = Verdict::Chosen;
    let name = best.name.clone();
    for report in reports.iter_mut().filter(|r| matches!(r.verdict, Verdict::Passed(_))) {
        report.verdict = Verdict::Passed(match selector {
            Some(wanted) => format!("--device {wanted} picks {name}"),
            None => format!("{name} is preferred; --device {} takes this one", report.index),
        });
    }
}

/// Whether `--device wanted` means this adapter: its index, or a part of its name in any case.
fn selects(wanted: &str, report: &DeviceReport) -> bool {
    match wanted.parse::<usize>() {
        Ok(index) => index == report.index,
        Err(_) => report.name.to_lowercase().contains(&wanted.to_lowercase()),
    }
}

/// What an adapter lacks of WebGPU's default limits, which every shader stays within.
fn shortfall(limits: &DeviceLimits) -> Option<String> {
    let wants = [
        ("storage buffers a shader", u64::from(limits.storage_buffers), 8),
        ("invocations a workgroup", u64::from(limits.invocations), 256),
        ("bytes of workgroup memory", u64::from(limits.workgroup_bytes), 16384),
        ("workgroups a dimension", u64::from(limits.workgroups), 65535),
        ("bytes a binding", limits.binding_bytes, 128 << 20),
    ];
    wants
        .into_iter()
        .find(|(_, found, want)| found < want)
        .map(|(what, found, want)| format!("it offers {found} {what}, want {want}"))
}

#[cfg(test)]
mod tests {
    use super::super::DeviceFeatures;
    use super::*;

    fn report(index: usize, name: &str, kind: &'static str) -> DeviceReport {
        DeviceReport {
            index,
            name: name.into(),
            kind,
            backend: "vulkan".into(),
            driver: "driver 1".into(),
            limits: DeviceLimits {
                buffer_bytes: 256 << 20,
                binding_bytes: 128 << 20,
                storage_buffers: 8,
                workgroup_bytes: 16384,
                invocations: 256,
                workgroups: 65535,
            },
            features: DeviceFeatures::NONE,
            variants: Vec::new(),
            verdict: Verdict::Passed(String::new()),
        }
    }

    fn refusal(reports: &[DeviceReport], selector: Option<&str>) -> String {
        pick(reports, selector).unwrap_err().to_string()
    }

    fn chosen(reports: &[DeviceReport]) -> Option<usize> {
        reports.iter().position(|r| r.verdict == Verdict::Chosen)
    }

    #[test]
    fn discrete_before_integrated_before_software() {
        let mut list = [
            report(0, "llvmpipe", "software"),
            report(1, "Iris", "integrated"),
            report(2, "Radeon", "discrete"),
        ];
        judge(&mut list, None);
        assert_eq!(chosen(&list), Some(2));
        assert_eq!(
            list[0].verdict,
            Verdict::Rejected(
                "a software adapter, used only on request while Iris exists; --device 0 takes it"
                    .into()
            )
        );
        assert_eq!(
            list[1].verdict,
            Verdict::Passed("Radeon is preferred; --device 1 takes this one".into())
        );
    }

    #[test]
    fn a_selector_takes_an_index_or_a_part_of_a_name() {
        for wanted in ["0", "PIPE"] {
            let mut list = [report(0, "llvmpipe", "software"), report(1, "Radeon", "discrete")];
            judge(&mut list, Some(wanted));
            assert_eq!(chosen(&list), Some(0), "{wanted}");
        }
    }

    #[test]
    fn an_adapter_that_is_too_small_is_rejected_with_the_limit() {
        let mut list = [report(0, "Old", "discrete")];
        list[0].limits.storage_buffers = 4;
        judge(&mut list, None);
        assert_eq!(
            list[0].verdict,
            Verdict::Rejected("it offers 4 storage buffers a shader, want 8".into())
        );
    }

    #[test]
    fn no_adapter_is_refused_with_what_to_install() {
        assert_eq!(
            refusal(&[], None),
            "wgpu: no adapter found; install a Vulkan driver (mesa-vulkan-drivers for a software one) or use --backend cpu"
        );
    }

    #[test]
    fn only_small_adapters_are_refused_with_what_each_lacks() {
        let mut list = [report(0, "Old", "discrete"), report(1, "Tiny", "integrated")];
        list[0].limits.storage_buffers = 4;
        list[1].limits.binding_bytes = 64 << 20;
        judge(&mut list, None);
        assert_eq!(
            refusal(&list, None),
            "wgpu: no usable device; there are: [0] Old: it offers 4 storage buffers a shader, want 8; [1] Tiny: it offers 67108864 bytes a binding, want 134217728"
        );
    }

    #[test]
    fn a_name_that_no_adapter_has_is_refused_with_the_list() {
        let mut list = [report(0, "llvmpipe", "software"), report(1, "Radeon", "discrete")];
        judge(&mut list, Some("GeForce"));
        assert_eq!(
            refusal(&list, Some("GeForce")),
            "wgpu: no usable device matches \"GeForce\"; there are: [0] llvmpipe; [1] Radeon"
        );
    }

    #[test]
    fn software_is_chosen_where_it_is_alone() {
        let mut list = [report(0, "llvmpipe", "software")];
        judge(&mut list, None);
        assert_eq!(pick(&list, None), Ok(0));
    }
}
