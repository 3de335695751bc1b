"""What is under deploy/, checked: manifests.py DEPLOY GRISTMILL

Manifests of Kubernetes by its schemas (kubernetes-validate, strict), the container file by hadolint, and what no schema knows: that names, labels, ports, times
and options agree. GRISTMILL is the program, whose options the manifests use.
"""

import pathlib
import re
import subprocess
import sys

import kubernetes_validate
import yaml

deploy, gristmill = pathlib.Path(sys.argv[1]), sys.argv[2]
NAMESPACE = "gristmill"
OPERATORS = "monitoring.coreos.com/v1"
# What connections may take after --shutdown-timeout (PARTING in server/src/lib.rs).
PARTING = 60
manifests = [
    manifest for path in sorted(deploy.glob("kubernetes/*.yaml")) for manifest in yaml.safe_load_all(path.read_text()) if manifest
]


def of(kind, name):
    (found,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def pods():
    return [m for m in manifests if m["kind"] == "Deployment"]


def container(deployment):
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return only


def selected(labels):
    """The pods that have all of these labels."""
    return [p for p in pods() if labels.items() <= p["spec"]["template"]["metadata"]["labels"].items()]


def ports_of(deployment):
    return {port["name"]: port["containerPort"] for port in container(deployment)["ports"]}


def schemas_hold():
    for manifest in manifests:
        if manifest["apiVersion"] != OPERATORS:
            kubernetes_validate.validate(manifest, "1.30", strict=True)
    # A schema that holds anything would hold this too.
    try:
        kubernetes_validate.validate(of("Service", "gristmill") | {"sepc": {}}, "1.30", strict=True)
        raise SystemExit("a key that there is not went through")
    except kubernetes_validate.ValidationError:
        pass


def monitors_are_the_operators():
    """By the operator's reference of PodMonitor, as far as these use it: its schema comes with the operator."""
    monitors = [m for m in manifests if m["apiVersion"] == OPERATORS]
    assert len(monitors) == 2
    for monitor in monitors:
        assert monitor["kind"] == "PodMonitor" and set(monitor) == {"apiVersion", "kind", "metadata", "spec"}, monitor
        assert set(monitor["spec"]) == {"selector", "podMetricsEndpoints"}, monitor
        (pod,) = selected(monitor["spec"]["selector"]["matchLabels"])
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert set(endpoint) <= {"port", "path", "interval", "scheme", "scrapeTimeout"}, endpoint
            assert endpoint["port"] in ports_of(pod) and re.fullmatch(r"\d+s", endpoint["interval"]), endpoint


def names_and_ports_agree():
    for manifest in manifests:
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == NAMESPACE, manifest["metadata"]
    for deployment in pods():
        labels = deployment["spec"]["selector"]["matchLabels"]
        assert selected(labels) == [deployment], labels
        names = ports_of(deployment)
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
            if probe in container(deployment):
                assert container(deployment)[probe]["httpGet"]["port"] in names, probe
        mounts = {mount["name"] for mount in container(deployment).get("volumeMounts", [])}
        assert mounts == {volume["name"] for volume in deployment["spec"]["template"]["spec"].get("volumes", [])}, mounts
    for service in [m for m in manifests if m["kind"] == "Service"]:
        (pod,) = selected(service["spec"]["selector"])
        assert all(port["targetPort"] in ports_of(pod) for port in service["spec"]["ports"])
    (policy,) = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    assert selected(policy["spec"]["podSelector"]["matchLabels"]) == [of("Deployment", "gristmill")]
    (router,) = [source["podSelector"] for source in policy["spec"]["ingress"][0]["from"] if "podSelector" in source]
    assert selected(router["matchLabels"]) == [of("Deployment", "gristmill-router")]


def the_servers_options_are_the_programs():
    server = of("Deployment", "gristmill")
    arguments = container(server)["args"]
    help = subprocess.run([gristmill, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert re.search(rf"^\s+(-\w, )?{option}\b", help, re.MULTILINE), option
    value = lambda name: arguments[arguments.index(name) + 1]
    assert int(value("--port")) == ports_of(server)["http"]
    before = container(server)["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = server["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= before + int(value("--shutdown-timeout")) + PARTING, (grace, before, value("--shutdown-timeout"))


def the_routers_options_are_the_routers():
    router = of("Deployment", "gristmill-router")
    help = subprocess.run([sys.executable, "-m", "smg", "launch", "--help"], capture_output=True, text=True, check=True).stdout
    options = dict(argument.removeprefix("--").partition("=")[::2] for argument in container(router)["args"])
    for option in options:
        assert re.search(rf"^\s+--{option}\b", help, re.MULTILINE), option
    key, label = options["selector"].split("=")
    (server,) = selected({key: label})
    assert int(options["service-discovery-port"]) == ports_of(server)["http"] and options["service-discovery-namespace"] == NAMESPACE
    (rule,) = of("Role", "gristmill-router")["rules"]
    assert {"get", "list", "watch"} <= set(rule["verbs"]) and rule["resources"] == ["pods"]
    account = router["spec"]["template"]["spec"]["serviceAccountName"]
    (subject,) = of("RoleBinding", "gristmill-router")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE} and of("ServiceAccount", account)
    # The image's own.
    image = (deploy / "Dockerfile").read_text()
    assert f'"--port", "{ports_of(router)["http"]}"' in image and f'"--prometheus-port", "{ports_of(router)["metrics"]}"' in image


def the_container_files_have_no_faults():
    linter = pathlib.Path(sys.executable).parent / "hadolint"
    files = [deploy / "Dockerfile", deploy / "Containerfile"]
    run = subprocess.run([linter, *files], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    # And the linter finds some.
    wrong = subprocess.run([linter, "-"], input="FROM debian\nRUN cd /tmp\n", capture_output=True, text=True)
    assert wrong.returncode != 0


for check in [
    schemas_hold,
    monitors_are_the_operators,
    names_and_ports_agree,
    the_servers_options_are_the_programs,
    the_routers_options_are_the_routers,
    the_container_files_have_no_faults,
]:
    check()
    print(check.__name__, "passed", flush=True)
