"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

A client sends a salted password. The broker keeps what is derived from it, which suffices to verify a
password but not to log in. It never returns or logs any of this.
"""

from collections import Counter

from semel.broker.broker import Broker
from semel.core.security.policies import PutCredential, RemoveCredential
from semel.core.security.users import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS,
    credential_of_salted,
    user_problem,
)
from semel.core.types import Command, ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.rights import ALTER, CLUSTER_DENIED, DESCRIBE, MESSAGES, rights_of
from semel.store.contract import StoreRefused
from semel.wire import messages as wire
from semel.wire.api_key import ApiKey

BY_NUMBER = dict(enumerate(MECHANISMS, start=1))
"""SCRAM mechanisms by their numbers on the wire."""
NAME_CHARS_MAX = 255
SALT_BYTES_MAX = 1_024

Problem = tuple[ErrorCode, str]
Change = wire.ScramCredentialDeletion | wire.ScramCredentialUpsertion


async def describe_user_scram_credentials(
    broker: Broker, request: wire.DescribeUserScramCredentialsRequest, context: RequestContext
) -> wire.DescribeUserScramCredentialsResponse:
    """DescribeUserScramCredentials v0: the SCRAM mechanisms of users.

    Behaviour: all users if the request names none. A user without credentials is RESOURCE_NOT_FOUND, a
        repeated user DUPLICATE_RESOURCE. Right: Describe Cluster.
    """
    if not rights_of(broker, request, context).cluster(DESCRIBE):
        refused = wire.DescribeUserScramCredentialsResult(error_code=CLUSTER_DENIED, error_message=None)
        return wire.DescribeUserScramCredentialsResponse(
            error_code=CLUSTER_DENIED, error_message=None, results=[refused] * len(request.users or ())
        )
    known: dict[str, list[wire.CredentialInfo]] = {}
    numbers = {name: number for number, name in BY_NUMBER.items()}
    for each in sorted(broker.policies.credentials.values(), key=lambda each: (each.user, each.mechanism)):
        info = wire.CredentialInfo(mechanism=numbers[each.mechanism], iterations=each.iterations)
        known.setdefault(each.user, []).append(info)
    asked = [each.name for each in request.users or ()] or sorted(known)
    results = []
    for user, times in Counter(asked).items():
        result = wire.DescribeUserScramCredentialsResult(user=user, error_message=None)
        if times > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = f"The user {user[:NAME_CHARS_MAX]!r} is named twice in one request"
        elif user not in known:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"The user {user[:NAME_CHARS_MAX]!r} has no SCRAM credential"
        else:
            result.credential_infos = known[user]
        results.append(result)
    return wire.DescribeUserScramCredentialsResponse(error_message=None, results=results)


async def alter_user_scram_credentials(
    broker: Broker, request: wire.AlterUserScramCredentialsRequest, context: RequestContext
) -> wire.AlterUserScramCredentialsResponse:
    """AlterUserScramCredentials v0: add, replace and remove credentials; each user independently.

    Behaviour: a repeated user is DUPLICATE_RESOURCE. Removing a credential that does not exist is
        RESOURCE_NOT_FOUND. Fewer than 4,096 or more than 16,384 iterations are UNACCEPTABLE_CREDENTIAL. The
        open connections of a removed user are closed. Right: Alter Cluster.
    """
    changes: list[Change] = [*request.deletions, *request.upsertions]
    names = Counter(each.name for each in changes)
    if not rights_of(broker, request, context).cluster(ALTER):
        message = MESSAGES[CLUSTER_DENIED]
        return wire.AlterUserScramCredentialsResponse(
            results=[
                wire.AlterUserScramCredentialsResult(
                    user=each, error_code=CLUSTER_DENIED, error_message=message
                )
                for each in sorted(names)
            ]
        )
    problems: dict[str, Problem] = {}
    commands: dict[str, Command[ErrorCode]] = {}
    room = broker.settings.semel_policies_max - len(broker.policies)
    for change in changes:
        if names[change.name] > 1:
            problem: Problem | None = (ErrorCode.DUPLICATE_RESOURCE, "A user is named twice in one request")
        else:
            problem = _problem(change)
        if problem is None and isinstance(change, wire.ScramCredentialUpsertion) and len(commands) >= room:
            problem = (ErrorCode.POLICY_VIOLATION, "There are too many policies (semel.policies.max).")
        if problem is not None:
            problems[change.name] = problem
        else:
            commands[change.name] = _command(change)
    try:
        answers = await broker.ask_each(list(commands.values()))
    except StoreRefused as refused:
        problems |= dict.fromkeys(commands, (ErrorCode.KAFKA_STORAGE_ERROR, refused.client_message))
        answers = [ErrorCode.NONE] * len(commands)
    for name, error in zip(commands, answers, strict=True):
        if error:
            problems[name] = (error, "There is no such credential")
    results = [
        wire.AlterUserScramCredentialsResult(
            user=name,
            error_code=problems.get(name, (ErrorCode.NONE,))[0],
            error_message=problems[name][1] if name in problems else None,
        )
        for name in names
    ]
    return wire.AlterUserScramCredentialsResponse(results=results)


def _problem(change: Change) -> Problem | None:
    if wrong_name := user_problem(change.name):
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, wrong_name
    if change.mechanism not in BY_NUMBER:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(change, wire.ScramCredentialDeletion):
        return None
    if change.iterations < ITERATIONS_MIN:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too few iterations, at least {ITERATIONS_MIN} are needed"
    if change.iterations > ITERATIONS_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too many iterations, at most {ITERATIONS_MAX} are allowed"
    if not 0 < len(change.salt) <= SALT_BYTES_MAX or not 0 < len(change.salted_password) <= SALT_BYTES_MAX:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt or salted password are empty or too long"
    return None


def _command(change: Change) -> Command[ErrorCode]:
    mechanism = BY_NUMBER[change.mechanism]
    if isinstance(change, wire.ScramCredentialDeletion):
        return RemoveCredential(change.name, mechanism)
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    return PutCredential(credential_of_salted(change.name, mechanism, salt, change.iterations, salted))


HANDLERS: dict[int, Handler] = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
}
