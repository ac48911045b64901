# SPDX-License-Identifier: Apache-2.0
"""All code of the documentation runs: see `tests.documentation.pages` for the rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.certificates import Authority, Certificate
from tests.documentation.pages import SHELL, Shell, blocks, check_shell_syntax, pages
from tests.documentation.preparations import ADDRESS, PREPARATIONS, Given
from tests.documentation.test_translations import TRANSLATIONS
from tests.matrix.queries import TOO_LATE
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import EmbeddedTubeMQ, TLSFiles

PAGES = pages()
ATTEMPTS = 3  # because a busy machine needs more than the 10 s that Spark gives a new process of a stream
# test_readme.py, test_retry_page.py, test_translations.py
ELSEWHERE = {"README.md", "docs/howto/retry.md", *TRANSLATIONS}


@contextmanager
def cluster_for(spark: SparkSession, tls: TLSFiles | None) -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(tls=tls) as tubemq:
        yield tubemq
        running = list(spark.streams.active)
        for query in running:
            query.stop()
        forget_servers()
        assert [query.exception() for query in running] == [None] * len(running)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in ELSEWHERE and any(block.runs for block in blocks(page))]
)
def test_the_blocks_of_a_page_run(
    page: str,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    authority: Authority,
    server_cert: Certificate,
) -> None:
    tls = TLSFiles(cert=str(server_cert.cert), key=str(server_cert.key)) if page == "docs/howto/security.md" else None
    for attempt in range(ATTEMPTS):
        try:
            with cluster_for(spark, tls) as tubemq:
                run_page(page, Given(spark, tubemq, tmp_path_factory.mktemp("page"), authority))
            return
        except (StreamingQueryException, AssertionError) as error:
            if TOO_LATE not in str(error) or attempt == ATTEMPTS - 1:
                raise


def run_page(page: str, given: Given) -> None:
    """Run the blocks of a page and its check."""
    prepared = PREPARATIONS[page](given) if page in PREPARATIONS else None
    check = iter(()) if prepared is None else prepared
    next(check, None)
    shell = Shell(page, given.spark, given.folder, {ADDRESS: given.tubemq.master, **given.replaced})
    shell.names.update(given.names)
    for block in blocks(page):
        if block.runs:
            shell.paste(block)
    assert shell.ran
    given.names = shell.names
    assert list(check) == []


@pytest.mark.parametrize("page", PAGES)
def test_bash_understands_the_commands_of_a_page(page: str) -> None:
    for block in blocks(page):
        if block.language in SHELL:
            check_shell_syntax(block.code)
