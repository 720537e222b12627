"""The options of an HTTP gateway that make its requests: mappings, variants, credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deliveryd.channels.header_fields import header_problems
from deliveryd.channels.http.address import address_problem
from deliveryd.channels.mail.options import MailOptions
from deliveryd.channels.mapping import (
    PHONE,
    Name,
    filtered_fields,
    is_known_later,
    mapping_problems,
    names_in,
    split,
    uses,
)
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.suggestion import suggestion
from deliveryd.options.tables import OnUse, Table, raise_all
from deliveryd.options.units import Positive, SecretPaths, Word

Scalar = StrictStr | StrictBool | StrictInt | StrictFloat
MappedPairs = dict[str, Scalar | list[Scalar]]
Method = Literal["POST", "PUT", "GET"]

OWN_HTTP_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "idempotency-key"}
    | {"expect", "upgrade", "te", "trailer", "keep-alive", "proxy-authorization", "proxy-connection"}
)

_CONDITIONAL = frozenset({"content", "variables", "message"})


class RequestParts(NamedTuple):
    """What one request is made from: the channel's own, or a variant laid over it."""

    method: Method
    url: str
    json_body: dict[str, Any] | list[Any] | None
    form: Mapping[str, object] | None
    query: Mapping[str, object] | None
    headers: Mapping[str, str]

    def problem(self) -> str | None:
        """Return why these can't be parts of one request, or None."""
        if self.json_body is not None and self.form is not None:
            return "json and form can't be combined: a request has one body"
        if self.method == "GET" and (self.json_body is not None or self.form is not None):
            return 'method = "GET" needs query instead of json or form'
        if self.json_body is None and self.form is None and not any(names_in([self.url, self.query])):
            return "the request wouldn't contain the message: set json, form or query"
        return None


def _condition(at: str) -> str:
    match list(split(at)):
        case [Name(root=root)] if root in _CONDITIONAL:
            return at
        case _:
            raise ValueError(
                'expected one placeholder of content, variables or message, such as "{content.image}"'
            )


class WhenOptions(Table):
    """A condition of a variant: a placeholder, and what its value must be."""

    at: Annotated[str, AfterValidator(_condition)] = Field(description="a placeholder: {content.image}")
    present: StrictBool | None = Field(None, description="whether it has a value that isn't empty")
    is_: list[Word] | None = Field(None, alias="is", min_length=1, description="its value is one of these")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.present is None) == (self.is_ is None):
            raise ValueError("set either present or is")
        return self


class VariantOptions(Table):
    """Another request for some messages; what it sets replaces the channel's own."""

    when: tuple[WhenOptions, ...] = Field(min_length=1, description="conditions that must all hold")
    url: str | None = Field(None, description="address")
    method: Method | None = Field(None, description="method of the request")
    json_body: dict[str, Any] | list[Any] | None = Field(None, alias="json", description="body as JSON")
    form: MappedPairs | None = Field(None, description="body as a form")
    query: MappedPairs | None = Field(None, description="parameters added to the address")
    headers: dict[str, str] | None = Field(None, description="headers added to the adapter's own")
    complete: bool = Field(False, description="refuse a message without a value for one of its placeholders")

    def over(self, base: RequestParts) -> RequestParts:
        """Return the parts of the request that this variant makes. GET drops the body of the base."""
        method = self.method or base.method
        keeps_body = self.json_body is None and self.form is None and method != "GET"
        return RequestParts(
            method,
            self.url or base.url,
            base.json_body if keeps_body else self.json_body,
            base.form if keeps_body else self.form,
            base.query if self.query is None else self.query,
            base.headers if self.headers is None else self.headers,
        )

    def mapped(self) -> dict[str, Any]:
        """Return everything that depends on the message, by configuration key."""
        parts = {name: getattr(self, name) for name in ("url", "form", "query", "headers")}
        return {"when": [when.at for when in self.when], "json": self.json_body, **parts}

    def problems(self, secrets: Mapping[str, object]) -> Iterator[str]:
        """Yield the problems of the placeholders and of what they stand in."""
        mapped = self.mapped()
        for at in mapped.pop("when"):
            yield from (f"when: {problem}" for problem in mapping_problems(at, secrets))
        for key, value in mapped.items():
            if value is not None:
                yield from (f"{key}: {problem}" for problem in part_problems(key, value, secrets))


class BasicOptions(Table):
    """HTTP Basic authentication."""

    username: str = Field(min_length=1, description="may hold {secret.NAME}")
    password: str = Field(min_length=1, description="{secret.NAME}")

    def mapped(self) -> dict[str, str]:
        """Return what may hold placeholders, by configuration key."""
        return {"username": self.username, "password": self.password}

    def problems(self, secrets: Mapping[str, object]) -> Iterator[str]:
        """Yield the problems of the placeholders."""
        for key, text in self.mapped().items():
            yield from (f"{key}: {problem}" for problem in mapping_problems(text, secrets))
            if any(name.root != "secret" for _, name in names_in(text)):
                yield f"{key}: only {{secret.NAME}} is allowed"
        if ":" in "".join(piece for piece in split(self.username) if isinstance(piece, str)):
            yield "username: must not contain a colon"
        if not any(True for _ in names_in(self.password)):
            yield "password: put it into a file that secrets names, and write {secret.NAME}"


class SignOptions(Table):
    """How requests are signed, so that the receiver can verify them."""

    scheme: Literal["standard-webhooks", "jwt"] = Field(
        "standard-webhooks",
        description="Standard Webhooks, or a JSON Web Token (RS256) as bearer token",
    )
    secret: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="name of the key in secrets, or several; each of their files signs; jwt: one, RSA in PEM"
    )
    claims: dict[str, StrictStr] = Field(
        {}, description="with jwt: claims of the token beside iat, exp and jti"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.scheme == "jwt" and len(self.names) > 1:
            raise ValueError("secret: a token is signed by one key")
        if self.claims and self.scheme != "jwt":
            raise ValueError('claims needs scheme = "jwt"')
        return self

    @property
    def names(self) -> list[str]:
        """Return the names of the keys."""
        return [self.secret] if isinstance(self.secret, str) else self.secret

    def problems(self, secrets: Mapping[str, object]) -> Iterator[str]:
        """Yield the keys that aren't defined."""
        for name in self.names:
            if name not in secrets:
                yield f"secret: {name!r} isn't defined in secrets{suggestion(name, secrets)}"


class RequestOptions(Table):
    """How a request is made from a message."""

    # First, since the validators of the others refer to it.
    secrets: dict[Annotated[str, Field(pattern=r"^[^{}|]+$")], SecretPaths] = Field(
        {}, description="names for {secret.NAME}, and their files; while one rotates a list"
    )
    url: str = Field(description="address; placeholders in path segments and values of the query")
    method: Method = Field("POST", description="method of the request")
    json_body: dict[str, Any] | list[Any] | None = Field(None, alias="json", description="body as JSON")
    form: MappedPairs | None = Field(None, description="body as a form, instead of json")
    query: MappedPairs | None = Field(None, description="parameters added to the address")
    headers: dict[str, str] = Field({}, description="headers added to the adapter's own")
    basic: OnUse[BasicOptions] | None = Field(None, description="Basic authentication: username, password")
    sign: OnUse[SignOptions] | None = Field(None, description="signature of requests; left out: none")
    auth: OnUse[AuthOptions] = Field(
        AuthOptions.model_construct(), description="authentication, as for the service"
    )
    variants: tuple[OnUse[VariantOptions], ...] = Field(
        (), description="other requests for some messages; the first that fits is sent"
    )
    mail: OnUse[MailOptions] | None = Field(None, description="the e-mail that {message.mime} stands for")
    country: str | None = Field(
        None, description='country of phone numbers without a country code, such as "GB"'
    )
    validity_min: Positive | None = Field(None, description="shortest validity that the provider accepts")
    validity_max: Positive | None = Field(None, description="longest validity that the provider accepts")
    heeds_keys: StrictBool = Field(False, description="whether the provider drops repeats by their key")
    traceparent: StrictBool = Field(False, description="send the header traceparent; needs otlp.endpoint")

    _receipt_url: str | None = PrivateAttr(None)

    @field_validator("url", "json_body", "form", "query", "headers")
    @classmethod
    def _usable(cls, value: Any, info: ValidationInfo) -> Any:
        if (secrets := info.data.get("secrets")) is not None:
            raise_all(part_problems(str(info.field_name).removesuffix("_body"), value, secrets))
        return value

    @field_validator("basic", "sign")
    @classmethod
    def _usable_table(cls, table: Any, info: ValidationInfo) -> Any:
        if table is not None and (secrets := info.data.get("secrets")) is not None:
            raise_all(table.problems(secrets))
        return table

    @field_validator("variants")
    @classmethod
    def _usable_variants(
        cls, variants: tuple[VariantOptions, ...], info: ValidationInfo
    ) -> tuple[VariantOptions, ...]:
        if (secrets := info.data.get("secrets")) is not None:
            raise_all(
                f"{index}.{problem}"
                for index, variant in enumerate(variants)
                for problem in variant.problems(secrets)
            )
        return variants

    @field_validator("country")
    @classmethod
    def _known_country(cls, country: str | None) -> str | None:
        if country is not None:
            from deliveryd.channels.phone_numbers import country_problem  # noqa: PLC0415  # loads phonenumbers

            if problem := country_problem(country):
                raise ValueError(problem)
        return country

    def _check_mail(self) -> None:
        """Raise ValueError unless there is a mail exactly where a request has it."""
        is_sent = uses(self.mapped(), "message", "mime")
        if is_sent and self.mail is None:
            raise ValueError('{message.mime} needs the mail\'s sender: set mail = { sender = "..." }')
        if self.mail is not None and not is_sent:
            raise ValueError("mail has no effect: no request has {message.mime}; set that, or remove mail")

    def _check_authentication(self) -> None:
        """Raise ValueError if two keys set the header Authorization."""
        names = {name.lower() for parts in self.all_parts() for name in parts.headers}
        has_header = "authorization" in names
        if self.basic is not None and has_header:
            raise ValueError("basic sets the header Authorization: remove that header")
        signs = self.sign is not None and self.sign.scheme == "jwt"
        if signs and (self.basic is not None or has_header):
            raise ValueError("sign sets the header Authorization: remove basic and that header")
        if "authorization" in self.auth.header_names and (self.basic is not None or signs):
            raise ValueError("keep one of auth, basic and sign: each sets the header Authorization")

    @model_validator(mode="after")
    def _carries_the_message(self) -> Self:
        base = self.parts()
        if problem := base.problem():
            raise ValueError(problem)
        for index, variant in enumerate(self.variants):
            if problem := variant.over(base).problem():
                raise ValueError(f"variants.{index}: {problem}")
        self._check_authentication()
        self._check_mail()
        if self.validity_min and self.validity_max and self.validity_max < self.validity_min:
            raise ValueError("validity_max must not be shorter than validity_min")
        return self

    def parts(self) -> RequestParts:
        """Return the parts of the request that is sent unless a variant fits."""
        return RequestParts(self.method, self.url, self.json_body, self.form, self.query, self.headers)

    def all_parts(self) -> list[RequestParts]:
        """Return the parts of all requests: the channel's own, and those of each variant."""
        base = self.parts()
        return [base, *(variant.over(base) for variant in self.variants)]

    def mapped(self) -> dict[str, object]:
        """Return everything that is filled in per message, by configuration key."""
        return {
            "url": self.url,
            "json": self.json_body,
            "form": self.form,
            "query": self.query,
            "headers": self.headers,
            "basic": self.basic and self.basic.mapped(),
            "variants": [variant.mapped() for variant in self.variants],
            "mail": self.mail and self.mail.to,
        }

    def reporting_to(self, url: str | None) -> Self:
        """Return these options for a provider that reports to this public address."""
        copied = self.model_copy()
        copied._receipt_url = url  # noqa: SLF001 - its own class
        return copied

    @property
    def receipt_url(self) -> str | None:
        """Return the public address that the provider reports to, if one is known."""
        return self._receipt_url

    @property
    def names_receipt_url(self) -> bool:
        """Whether a request has the address to which the provider reports."""
        return uses(self.mapped(), "receipt", "url")

    @property
    def phone_fields(self) -> frozenset[Name]:
        """Return the placeholders whose values are read as phone numbers."""
        return filtered_fields(self.mapped(), PHONE)


def part_problems(key: str, value: Any, secrets: Mapping[str, object]) -> list[str]:
    """Return the problems of one part of a request, by its configuration key."""
    problems = mapping_problems(value, secrets)
    problems += [
        f"{place}: the provider's id isn't known before the message was sent; it can be used in lookup"
        for place, name in names_in(value)
        if is_known_later(name)
    ]
    if problems:
        return problems
    match key:
        case "url":
            return [problem] if (problem := address_problem(value)) else []
        case "headers":
            return list(header_problems(value, OWN_HTTP_HEADERS))
        case "json":
            return json_problems(value)
        case _:
            return []


def json_problems(value: object) -> list[str]:
    """Return why a value can't be written as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except TypeError:
        return ["a date or time must be a string in quotes"]
    except ValueError as error:
        return [str(error)]
    return []
