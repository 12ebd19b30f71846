"""What no schema knows: that names, ports and labels in these manifests mean each other.

check.py RENDERED, a directory with the chart's renderings.
"""

import glob
import re
import sys
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
seconds += container["lifecycle"]["preStop"]["sleep"]["seconds"]
grace = pod["terminationGracePeriodSeconds"]
assert grace > seconds + 11, f"terminationGracePeriodSeconds {grace} is too short for {seconds} s and the servers' ends"

metrics = re.findall(r'"(trunkline_\w+)"', open("../src/telemetry/metrics.rs").read())
metric = autoscaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
assert metric in metrics, f"no metric is called {metric}"


def plain(node):
    """The chart's object as the manifests have it: without the labels that only Helm gives."""
    if isinstance(node, dict):
        ours = {key: plain(value) for key, value in node.items()}
        for key in ("app.kubernetes.io/instance", "app.kubernetes.io/version"):
            ours.pop(key, None)
        for key in ("app.kubernetes.io/managed-by", "helm.sh/chart", "trunkline.service"):
            ours.pop(key, None)
        return ours
    return [plain(item) for item in node] if isinstance(node, list) else node


def rendered(name):
    found = yaml.safe_load_all(open(f"{sys.argv[1]}/{name}.yaml"))
    return {(one["kind"], one["metadata"]["name"]): plain(one) for one in found if one}


chart = rendered("defaults")
ours = {(one["kind"], one["metadata"]["name"]): one for one in manifests}
# The secret is referred to, and is never part of the chart.
del ours["Secret", "trunkline"]
same("objects of the chart", {*chart}, {*ours})
for key, manifest in ours.items():
    if key[0] == "Deployment":
        tag = kustomization["images"][0]["newTag"]
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] += f":{tag}"
        # What Kubernetes assumes for a tag that is not `latest`.
        pulled = chart[key]["spec"]["template"]["spec"]["containers"][0].pop("imagePullPolicy")
        same("imagePullPolicy", pulled, "IfNotPresent")
    if key[0] == "ConfigMap":
        texts = [one["data"].pop("trunkline.toml") for one in (chart[key], manifest)]
        same("the chart's configuration", *texts)
    same(f"the chart's {key[0]} {key[1]}", chart[key], manifest)

everything = rendered("good-everything")
monitor = everything["ServiceMonitor", "trunkline"]["spec"]
service = everything["Service", "trunkline-ops"]["spec"]
same("what is monitored", monitor["endpoints"][0]["port"], service["ports"][0]["name"])
backend = everything["Ingress", "trunkline"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]
called = everything["Service", backend["service"]["name"]]["spec"]["ports"][0]["name"]
same("the port behind the ingress", backend["service"]["port"]["name"], called)
single = rendered("good-single")
same("replicas without the autoscaler", single["Deployment", "trunkline"]["spec"]["replicas"], 1)
assert "replicas" not in chart["Deployment", "trunkline"]["spec"], "the autoscaler would be overridden"
