// What products for few rows share, whoever adds up an output: the shader that includes this binds `scales`.

const NONE: u32 = 0xffffffffu; // a workgroup without outputs

// E4M3 scales of the two blocks of a unit.
fn block_bytes(unit: u32) -> u32 {
    if (FORMAT == NVFP4) {
        return (scales[unit >> 1u] >> ((unit & 1u) * 16u)) & 0xffffu;
    }
    return 0u;
}
