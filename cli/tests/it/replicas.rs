//! `gristmill serve` with several devices.

use super::serve::{get, serve};
use super::{DEMO, run};
use std::time::{Duration, Instant};

#[test]
fn each_device_has_a_replica() {
    let server = serve(&[DEMO, "--device", "cpu,cpu", "--threads", "1", "-c", "512"]);
    let begin = Instant::now();
    let models = loop {
        let models = get(&server.address, "/v1/models");
        if !models.contains("\"value\":\"loading\"") {
            break models;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "{models}");
        std::thread::sleep(Duration::from_millis(20));
    };
    for replica in [0, 1] {
        let of = format!("\"replica\":{replica},\"device\":\"cpu\",\"value\":\"loaded\"");
        assert!(models.contains(&of), "{models}");
        let up = format!(
            "gristmill_replica_up{{model=\"demo-glm-Q4_0\",replica=\"{replica}\",device=\"cpu\"}} 1"
        );
        assert!(get(&server.address, "/metrics").contains(&up));
    }
    assert!(get(&server.address, "/v1/loads").contains("\"max_running_requests\":16"));
}

#[test]
fn several_devices_are_for_serve() {
    let refused = |arguments: &[&str], message: &str| {
        let outcome = run(arguments);
        assert_eq!(outcome.code, 2, "{arguments:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
    };
    for command in ["run", "bench", "profile"] {
        refused(
            &[command, DEMO, "--device", "cpu,cpu"],
            "--device takes several devices here if all of them are GPUs\nhint: name one device",
        );
    }
    for command in ["tune", "kernels"] {
        refused(
            &[command, DEMO, "--device", "cuda:0,cuda:1"],
            "--device takes one device here",
        );
    }
    let serve = ["serve", "--port", "0", "--device"];
    let with = |rest: &[&'static str]| [&serve[..], rest].concat();
    refused(&with(&["cpu,none-such"]), "devices are cpu, cuda");
    refused(&with(&["cpu,"]), "devices are cpu, cuda");
    refused(&with(&["cpu,null"]), "the device null computes nothing");
    refused(
        &with(&["cpu,cpu", "-ngl", "3"]),
        "parts of a model can be placed on several devices if all of them are GPUs",
    );
}
