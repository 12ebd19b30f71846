"""What no schema knows: that names, ports and labels in these manifests mean each other."""

import glob
import re
import tomllib

import yaml

LABELS = {"app.kubernetes.io/name": "trunkline"}


def of_kind(kind):
    return [one for one in manifests if one["kind"] == kind]


def members(node):
    """Every member of every mapping, wherever it stands."""
    if isinstance(node, dict):
        yield from node.items()
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for item in inner:
        yield from members(item)


def selectors(node):
    """Every selector of our pods."""
    for key, value in members(node):
        if key == "matchLabels" and "app.kubernetes.io/name" in value:
            yield value
        elif key == "selector" and "matchLabels" not in value:
            yield value


def ports(node):
    """Every port that is named, not numbered."""
    for key, value in members(node):
        if key in ("port", "targetPort") and isinstance(value, str):
            yield value


def same(what, found, expected):
    assert found == expected, f"{what}: {found!r}, expected {expected!r}"


kustomization = yaml.safe_load(open("kustomization.yaml"))
files = {*glob.glob("*.yaml")} - {"kustomization.yaml"}
same("resources", {*kustomization["resources"]}, files - {"secret.example.yaml"})
manifests = [one for file in sorted(files) for one in yaml.safe_load_all(open(file))]
(deployment,), (config,), (secret,) = map(of_kind, ("Deployment", "ConfigMap", "Secret"))
pod = deployment["spec"]["template"]["spec"]
(container,) = pod["containers"]

for manifest in manifests:
    for selector in selectors(manifest):
        same(f"a selector in {manifest['kind']}", selector, LABELS)
    for port in ports(manifest):
        assert port in {one["name"] for one in container["ports"]}, f"{manifest['kind']}: no port is called {port}"
same("labels of pods", deployment["spec"]["template"]["metadata"]["labels"], LABELS)
same("the image", container["image"], kustomization["images"][0]["name"])

volumes = {volume["name"]: volume for volume in pod["volumes"]}
same("volumes", {mount["name"] for mount in container["volumeMounts"]}, {*volumes})
same("the config map", volumes["config"]["configMap"]["name"], config["metadata"]["name"])
same("the secret", volumes["secrets"]["secret"]["secretName"], secret["metadata"]["name"])
(autoscaler,) = of_kind("HorizontalPodAutoscaler")
same("what is scaled", autoscaler["spec"]["scaleTargetRef"]["name"], deployment["metadata"]["name"])

text = config["data"]["trunkline.toml"]
settings = tomllib.loads(text)
named = set(re.findall(r"\$\{file:/run/secrets/trunkline/([^}]+)\}", text))
same("keys of the secret", {*secret["stringData"]}, named)
seconds = sum(int(settings[key].removesuffix("s")) for key in ("drain_delay", "drain_timeout"))
seconds += int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
grace = pod["terminationGracePeriodSeconds"]
assert grace > seconds + 11, f"terminationGracePeriodSeconds {grace} is too short for {seconds} s and the servers' ends"

metrics = re.findall(r'"(trunkline_\w+)"', open("../src/telemetry/metrics.rs").read())
metric = autoscaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
assert metric in metrics, f"no metric is called {metric}"
