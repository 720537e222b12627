"""The table `[customers]`: the common keys, and those of the configured source."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from deliveryd.directory.base import Terms
from deliveryd.directory.none import NoOptions
from deliveryd.directory.registry import check_source, options_of
from deliveryd.options.file import ConfigFile
from deliveryd.options.units import Positive


class CustomersOptions(BaseModel):
    """The issuer's own customer directory; all other keys belong to its source."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    source: str = Field("none", description='"none", "file", "http", "sql", or the name of a plug-in')
    cache_ttl: Positive = Field(
        300.0, description="how long an answer of a remote directory is kept; unknown customers: 30 s"
    )
    timeout: Positive = Field(5.0, description="for one query to a remote directory")
    concurrency: StrictInt = Field(10, ge=1, le=1000, description="queries at a time")
    options: BaseModel = Field(NoOptions.model_construct(), exclude=True)

    @property
    def terms(self) -> Terms:
        """Return the options common to all remote directories."""
        return Terms(self.cache_ttl, self.timeout, self.concurrency)


def read_customers(file: ConfigFile, table: object) -> CustomersOptions:
    """Read the table; note its mistakes, and return it without the invalid values."""
    if not isinstance(table, dict):
        file.complain("customers", "expected a table")
        return CustomersOptions()
    common = [name for name, field in CustomersOptions.model_fields.items() if not field.exclude]
    given = {key: table[key] for key in common if key in table}
    own = {key: value for key, value in table.items() if key not in common}
    customers = file.validate(CustomersOptions, given, "customers") or file.remainder(CustomersOptions, given)
    if customers is None:
        return CustomersOptions()
    if customers.source == "none" and own:
        text = f'is "none", which has no key {min(own)}: set the source that the key is for'
        file.complain("customers.source", text)
        return customers
    try:
        model = options_of(customers.source)
    except ValueError as error:
        file.complain("customers.source", str(error))
        return CustomersOptions()
    options = file.validate(model, own, "customers", known=common) or file.remainder(model, own)
    if options is None:
        return CustomersOptions()
    for problem in check_source(customers.source, options):
        key, _, text = problem.partition(": ")
        file.complain(f"customers.{key}", text)
    return customers.model_copy(update={"options": options})
