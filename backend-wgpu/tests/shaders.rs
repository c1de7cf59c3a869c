//! Every kernel of every variant is valid WGSL within WebGPU's defaults, and every back end of naga can write it.

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use whipsnake_wgpu::{Kernel, kernels};

/// WebGPU's default limits of a compute shader.
const WORKGROUP_BYTES: u32 = 16384;
/// What `devices` wants of a device before it takes cooperative matrices.
const COOP_BYTES: u32 = 26 << 10;
/// What hosts let teams in subgroups stage where the device has it.
const SUBGROUP_BYTES: u32 = 48 << 10;
const INVOCATIONS: u32 = 256;
/// What hosts let teams in subgroups have where the device allows it.
const SUBGROUP_INVOCATIONS: u32 = 704;
const STORAGE_BUFFERS: usize = 8;
/// What hosts want of a device before they take a wide kernel.
const WIDE_BUFFERS: usize = 13;

fn parsed(kernel: &Kernel) -> (naga::Module, ModuleInfo) {
    let source = kernel.source();
    // WebGPU's own unpack2x16float is a capability of its own in naga.
    let core = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    // Subgroup kernels run only where the device offers them.
    let allowed = match kernel.entry_point() {
        "subgroup" => core | Capabilities::SUBGROUP,
        "coop" => {
            core | Capabilities::SUBGROUP
                | Capabilities::SHADER_FLOAT16
                | Capabilities::COOPERATIVE_MATRIX
        }
        _ => core,
    };
    let module = naga::front::wgsl::parse_str(&source)
        .unwrap_or_else(|e| panic!("{kernel}: {}", e.emit_to_string(&source)));
    let info = Validator::new(ValidationFlags::all(), allowed)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{kernel}: {}", e.emit_to_string(&source)));
    (module, info)
}

/// Kernels on cooperative matrices: only Vulkan offers them to wgpu with these sizes.
fn is_optional(kernel: &Kernel) -> bool {
    kernel.entry_point() == "coop"
}

fn check_all(check: impl Fn(&Kernel, &naga::Module, &ModuleInfo)) {
    let kernels = kernels();
    assert!(kernels.len() > 100);
    for kernel in &kernels {
        let (module, info) = parsed(kernel);
        check(kernel, &module, &info);
    }
}

#[test]
fn every_kernel_stays_within_webgpu_defaults() {
    check_all(|kernel, module, info| {
        let index = module.entry_points.iter().position(|e| e.name == kernel.entry_point());
        let index = index.unwrap_or_else(|| panic!("{kernel}: no such entry point"));
        let [x, y, z] = module.entry_points[index].workgroup_size;
        let subgroups = kernel.entry_point() == "subgroup";
        let most = if subgroups { SUBGROUP_INVOCATIONS } else { INVOCATIONS };
        assert!(x * y * z <= most, "{kernel}");
        let used = info.get_entry_point(index);
        let (mut bytes, mut buffers) = (0, 0);
        for (handle, variable) in module.global_variables.iter() {
            if used[handle].is_empty() {
                continue;
            }
            match variable.space {
                naga::AddressSpace::WorkGroup => {
                    let size = module.types[variable.ty].inner.try_size(module.to_ctx());
                    bytes += size.unwrap_or(u32::MAX);
                }
                naga::AddressSpace::Storage { .. } => buffers += 1,
                _ => {}
            }
        }
        let most = match kernel.entry_point() {
            "coop" => COOP_BYTES,
            "subgroup" => SUBGROUP_BYTES,
            _ => WORKGROUP_BYTES,
        };
        assert!(bytes <= most, "{kernel}: {bytes} bytes of workgroup memory");
        let most = if kernel.is_wide() { WIDE_BUFFERS } else { STORAGE_BUFFERS };
        assert!(buffers <= most, "{kernel}: {buffers} storage buffers");
    });
}

#[test]
fn every_kernel_becomes_spir_v() {
    check_all(|kernel, module, info| {
        let stage = naga::ShaderStage::Compute;
        let pipeline =
            spv::PipelineOptions { shader_stage: stage, entry_point: kernel.entry_point().into() };
        let words = spv::write_vec(module, info, &spv::Options::default(), Some(&pipeline));
        assert!(words.is_ok_and(|w| !w.is_empty()), "{kernel}");
    });
}

#[test]
fn every_kernel_becomes_metal() {
    check_all(|kernel, module, info| {
        if is_optional(kernel) {
            return;
        }
        let options = msl::Options { fake_missing_bindings: true, ..Default::default() };
        let text = msl::write_string(module, info, &options, &Default::default());
        assert!(text.is_ok(), "{kernel}: {:?}", text.err());
    });
}

#[test]
fn every_kernel_becomes_hlsl() {
    check_all(|kernel, module, info| {
        if is_optional(kernel) {
            return;
        }
        let mut text = String::new();
        let (options, pipeline) = (hlsl::Options::default(), hlsl::PipelineOptions::default());
        let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
        let outcome = writer.write(module, info, None);
        assert!(outcome.is_ok(), "{kernel}: {:?}", outcome.err());
    });
}
