"""A server of S3 on the loopback, with a bucket for each test."""

import itertools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

KEY, SECRET, TOKEN = "AKIAMARKEDKEY0000000", "marked/secret+key", "marked-session-token"
"""What must be seen nowhere."""
_numbers = itertools.count()


class Server:
    """A server that can be stopped and started again. What it has stays."""

    def __init__(self) -> None:
        self.port, self.running = 0, False
        self.start()

    def start(self) -> None:
        self._server = ThreadedMotoServer(port=self.port, verbose=False)
        self._server.start()
        self.port, self.running = self._server.get_host_and_port()[1], True

    def stop(self) -> None:
        if self.running:
            self._server.stop()
        self.running = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Bucket:
    """A bucket, with a client that is none of those that are tested."""

    def __init__(self, server: Server) -> None:
        self.server, self.name = server, f"bucket-{next(_numbers)}"
        self.client: Any = boto3.client("s3", endpoint_url=server.url)
        self.client.create_bucket(Bucket=self.name)

    def url(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def names(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def upload(self, folder: Path, prefix: str = "") -> str:
        """Put the files of a folder into the bucket. Returns the URL of the folder there."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix or folder.name}/{path.relative_to(folder)}", path.read_bytes())
        return self.url(prefix or folder.name)


@pytest.fixture(scope="session")
def started() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def server(started: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": started.url,
        # Who is refused asks no other machine for credentials, and not again and again.
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    return started


@pytest.fixture
def bucket(server: Server) -> Bucket:
    return Bucket(server)


@pytest.fixture
def asked(server: Server, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The requests since it was called last, such as 'GET /bucket/key'."""
    caplog.set_level(logging.INFO, "werkzeug")

    def lines() -> list[str]:
        found = [re.search(r"([A-Z]+ /\S*) HTTP", record.getMessage()) for record in caplog.records]
        caplog.clear()
        return [each[1] for each in found if each is not None]

    return lines
