"""The pods that a JobSet would start, and what each is told: for tests without a cluster."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Pod:
    """One pod: the name of its Job and host, its command and environment, variables filled in."""

    kind: str
    host: str
    command: list[str]
    env: dict[str, str]


def pods(job_set):
    """Returns the pods of a JobSet, in the order in which its dependencies start them."""
    name, result, known = job_set["metadata"]["name"], [], set()
    for replicated in job_set["spec"]["replicatedJobs"]:
        kind, spec = replicated["name"], replicated["template"]["spec"]
        assert all(other["name"] in known for other in replicated.get("dependsOn", ()))
        known.add(kind)
        (container,) = spec["template"]["spec"]["containers"]
        for job in range(replicated["replicas"]):
            for pod in range(spec["completions"]):
                annotations = {
                    "jobset.sigs.k8s.io/job-index": job,
                    "batch.kubernetes.io/job-completion-index": pod,
                }
                env = _environment(container["env"], annotations)
                command = [_filled(word, env) for word in container["command"]]
                result.append(Pod(kind, f"{name}-{kind}-{job}-{pod}.{name}", command, env))
    return result


def _environment(entries, annotations):
    env = {}
    for entry in entries:
        if "valueFrom" in entry:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            key = re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)[1]
            env[entry["name"]] = str(annotations[key])
        else:
            env[entry["name"]] = _filled(entry["value"], env)
    return env


def _filled(text, env):
    """Kubernetes' rule: $(NAME) of a variable that was set before, and $$ for $."""
    pattern = r"\$\$|\$\((\w+)\)"
    return re.sub(pattern, lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)
