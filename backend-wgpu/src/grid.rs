//! Workgroup counts within the limit of a dimension.

/// Spreads `groups` workgroups over two dimensions; shaders flatten them again and leave the surplus idle.
pub(crate) fn split(groups: u64, limit: u32) -> Option<[u32; 2]> {
    let limit = u64::from(limit.max(1));
    let rows = groups.div_ceil(limit).max(1);
    let columns = groups.div_ceil(rows);
    let narrow = |n: u64| u32::try_from(n).ok();
    if rows > limit {
        return None;
    }
    narrow(columns).zip(narrow(rows)).map(|(x, y)| [x, y])
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn small_counts_stay_in_one_dimension() {
        assert_eq!(split(1, 65535), Some([1, 1]));
        assert_eq!(split(65535, 65535), Some([65535, 1]));
    }

    #[test]
    fn large_counts_are_covered_within_the_limit() {
        for groups in [65536u64, 65537, 131_071, 1 << 24, 65535 * 65535] {
            let [x, y] = split(groups, 65535).expect("it fits");
            assert!(x <= 65535 && y <= 65535, "{groups}");
            assert!(u64::from(x) * u64::from(y) >= groups, "{groups}");
            assert!(u64::from(x) * u64::from(y) - groups < u64::from(y), "{groups}");
        }
    }

    #[test]
    fn what_no_grid_covers_is_refused() {
        assert_eq!(split(65535 * 65535 + 1, 65535), None);
    }
}
