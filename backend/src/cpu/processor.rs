//! Description of the processor, the key of its tuning and measurements.

use super::isa::Isa;

/// Returns processor model, instruction set and core count as text.
pub fn machine(isa: Isa) -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    format!(
        "{}, {}, {cores} cores",
        model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        isa.name()
    )
}

/// Extracts the processor model from `/proc/cpuinfo`.
fn model(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let of = |line: &str| {
            line.split_once(':')
                .map(|(k, v)| (k.trim().to_string(), v.trim().to_string()))
        };
        cpuinfo
            .lines()
            .filter_map(of)
            .find(|(k, _)| k == name)
            .map(|x| x.1)
    };
    // ARM processors have only numbers. On x86, models with one name may differ in
    // family and model numbers.
    let names = [
        "model name",
        "cpu family",
        "model",
        "CPU implementer",
        "CPU part",
    ];
    let all: Vec<String> = names.iter().filter_map(|n| field(n)).collect();
    if all.is_empty() {
        std::env::consts::ARCH.into()
    } else {
        all.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_name() {
        assert_eq!(
            model("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Fast CPU @ 3\n\nmodel\t: 18\n"),
            "Fast CPU @ 3 17"
        );
        assert_eq!(
            model("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n"),
            "0x41 0xd40"
        );
        assert_eq!(model(""), std::env::consts::ARCH);
    }
}
