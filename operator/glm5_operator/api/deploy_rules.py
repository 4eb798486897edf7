"""The CEL rules of adapters: those of a service's list, and of where a fine-tuning job deploys to. `rules` takes them into its table.

That a job's output lies in its service's adapterStorage needs the service: `status.deployment` says so, no rule.
"""

from __future__ import annotations

from typing import Final

from .cel import LABEL, SUBDOMAIN, Rule, duration

_BAD_PATH: Final = r"^[a-z]+:///?[^\\n]*(//|/\\.\\.?(/|$)|[\\s\\\\])"

DEPLOY_RULES: Final = (
    Rule(
        "adapter-name",
        "self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",
        "an adapter's name must be letters, digits, dots, dashes and underscores: clients send it as `model`",
    ),
    Rule(
        "adapter-scheme",
        "self.matches('^(job|pvc)://')",
        "an adapter's source must start with job:// (job://NAME) or pvc:// (pvc://CLAIM/FOLDER)",
    ),
    Rule(
        "adapter-source",
        f"!self.matches('^(job|pvc)://') || self.matches('^(job://{LABEL}|pvc://{SUBDOMAIN}/[^/](.*[^/])?)$')",
        "an adapter's source must be job://NAME with a GLM5FinetuneJob of the service's namespace, or pvc://CLAIM/FOLDER",
    ),
    Rule(
        "adapter-path",
        f"!self.matches('{_BAD_PATH}')",
        "the path of an adapter's source may not contain `..`, `.`, `//`, backslashes or spaces: write it out",
    ),
    Rule(
        "adapter-storage",
        f"self.matches('^pvc://{SUBDOMAIN}(/[^/]+)*$')",
        "adapterStorage must be pvc://CLAIM or pvc://CLAIM/FOLDER without a slash at the end, where CLAIM is a PersistentVolumeClaim of "
        "the service's namespace",
    ),
    Rule(
        "adapter-storage-path",
        f"!self.matches('{_BAD_PATH}')",
        "the path of adapterStorage may not contain `..`, `.`, `//`, backslashes or spaces: write it out",
    ),
    Rule("canary-share", "self > 0.0", "canary.share must be above 0 and at most 1, for example 0.1; leave canary out to go without one"),
    duration("canary-time", "1s", "168h"),
    Rule(
        "deploy-service",
        f"self.matches('^{LABEL}$')",
        "deploy.service must be the name of a GLM5Service of the job's namespace: lower-case letters, digits and dashes",
    ),
    Rule(
        "deploy-adapter",
        "!has(self.deploy) || (self.method != 'full' && !self.?merge.orValue(false))",
        "deploy loads an adapter into a running service: it needs a method that trains one, such as lora, without merge",
        ".deploy",
    ),
    Rule(
        "deploy-fixed",
        "!has(self.spec.deploy) || !has(oldSelf.spec.deploy) || !has(self.status) || !has(self.status.deployment)"
        " || self.spec.deploy == oldSelf.spec.deploy",
        "deploy can't change while the adapter is being deployed: remove it, which takes the adapter out of the service, then set it anew",
        ".spec.deploy",
    ),
)
"""Rules of one field, and those of a whole job."""


def service_rules(native: str) -> tuple[Rule, ...]:
    """Rules of a service's spec; `native` is the CEL expression that says whether its engine is the bundled one."""
    return (
        Rule(
            "adapters-native",
            f"!has(self.adapterStorage) || {native}",
            "adapters are engine native's: remove adapterStorage, or set engine.name to native",
            ".adapterStorage",
        ),
        Rule(
            "adapters-storage",
            "has(self.adapterStorage) || (!has(self.adapters) && !has(self.adapterLimits))",
            "adapters and adapterLimits need adapterStorage, the volume that adapters lie in: pvc://CLAIM or pvc://CLAIM/FOLDER",
            ".adapterStorage",
        ),
        Rule(
            "adapters-within",
            "!has(self.adapters) || !has(self.adapterStorage) || "
            "self.adapters.all(one, !one.source.startsWith('pvc:') || one.source.startsWith(self.adapterStorage + '/'))",
            "the source of an adapter must lie within adapterStorage, which is all of volumes that the engine sees",
            ".adapters",
        ),
        Rule(
            "adapters-names",
            "!has(self.adapters) || self.adapters.all(one, one.name != self.model.?servedName.orValue(self.model.name))",
            "an adapter can't have the name that the model itself is served by: choose another name",
            ".adapters",
        ),
        Rule(
            "adapters-count",
            "!has(self.adapters) || self.adapters.size() <= self.?adapterLimits.?count.orValue(4)",
            "there are more adapters than adapterLimits.count (default 4): raise it; the engine sets aside memory for each",
            ".adapters",
        ),
    )
