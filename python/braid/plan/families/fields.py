"""The fields of a config.json, each asked for by name and looked at before it is believed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from braid.plan.shipped import Json
from braid.plan.wrong import PlanError

_LARGEST = 1 << 32  # of any shape; products of such stay finite
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Says:
    """A yes or no that a field of the config tells."""

    field: str
    default: bool = False


Switch = bool | Says


@dataclass(frozen=True)
class Fields:
    """What a config says, and what its family takes where it says nothing."""

    values: Mapping[str, Json]
    model: str
    """For messages."""
    defaults: Mapping[str, Json]
    spelled: Mapping[str, str] = field(default_factory=dict)
    """For messages: what the config calls a field of ours."""

    def get(self, field: str) -> Json:
        """As written; null counts as not written."""
        value = self.values.get(field)
        return self.defaults.get(field) if value is None else value

    def need(self, names: Iterable[str]) -> None:
        """PlanError that names all of these that are not there."""
        missing = [name for name in names if self.get(name) is None]
        if missing:
            said = ", ".join(self.spelled.get(name, name) for name in missing)
            raise PlanError(f"model {self.model}: config.json has no {said}")

    def whole(self, field: str, default: int | None = None, least: int = 1) -> int:
        """A count. PlanError when it is none, or is not there and has no default."""
        value = self.get(field)
        if value is None and default is not None:
            return default
        self.need([field])
        if type(value) is not int or not least <= value <= _LARGEST:
            raise self.wrong(field, f"a whole number from {least} up", value)
        return value

    def layers(self) -> int:
        """How many; few enough to look at each."""
        count = self.whole("num_hidden_layers")
        if count > _MOST_LAYERS:
            raise self.wrong("num_hidden_layers", f"at most {_MOST_LAYERS:,}", count)
        return count

    def on(self, switch: Switch) -> bool:
        """Whether something is there."""
        if isinstance(switch, bool):
            return switch
        value = self.get(switch.field)
        if value is None:
            return switch.default
        if value not in (True, False):
            raise self.wrong(switch.field, "true or false", value)
        return bool(value)

    def list(self, field: str) -> list[Json] | None:
        """A list; None when there is none."""
        value = self.get(field)
        if value is not None and not isinstance(value, list):
            raise self.wrong(field, "a list", value)
        return value

    def of_layer(self, field: str, layer: int) -> Json:
        """A layer's entry of a list with one for each; None when there is no such list."""
        found = self.list(field)
        if found is None:
            return None
        if len(found) < self.layers():
            raise PlanError(
                f"model {self.model}: {field}: {len(found)} entries for {self.layers()} layers"
            )
        return found[layer]

    def inner(self, field: str) -> "Fields":
        """The fields of an object inside."""
        value = self.get(field) or {}
        if not isinstance(value, Mapping):
            raise self.wrong(field, "an object", value)
        return Fields(value, f"{self.model}: {field}", {})

    def wrong(self, field: str, asked: str, found: object) -> PlanError:
        """The message for a field that is not what it must be."""
        said = self.spelled.get(field, field)
        return PlanError(f"model {self.model}: {said}: asked for {asked}, found {found!r:.40}")

    def unknown(self, field: str, why: str) -> PlanError:
        """The message for a field that braid has no rule for."""
        return PlanError(
            f"model {self.model}: {field} is {self.get(field)!r:.40}: {why}; --params takes a count"
        )
