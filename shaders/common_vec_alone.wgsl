// What common_vec asks of a product that stands alone; see common_siblings.wgsl.

fn place_among(i: u32, width: u32) -> u32 {
    return select(NONE, i * width, i * width < params.outputs);
}

fn outputs_here() -> u32 {
    return params.outputs;
}

fn unit_at(i: u32) -> vec4<u32> {
    return weight[i];
}

fn scale_word(i: u32) -> u32 {
    return scales[i];
}
