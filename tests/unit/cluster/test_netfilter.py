"""What is taken back from the packet filter when our dockerd stops: Docker's, no one else's."""

from tests.cluster.netfilter import removals

CLEAN = """*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
COMMIT
"""
AFTER = """*filter
:INPUT ACCEPT [5:300]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
:MINE - [0:0]
-A INPUT -s 10.0.0.0/8 -m comment --comment "office lan" -j ACCEPT
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
"""


def test_dockers_rules_go_before_its_chains_and_forwarding_is_open_again() -> None:
    assert removals(CLEAN, AFTER) == [
        ["-t", "filter", "-D", "FORWARD", "-j", "DOCKER-USER"],
        ["-t", "filter", "-D", "DOCKER-USER", "-j", "RETURN"],
        ["-t", "nat", "-D", "PREROUTING", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "DOCKER"],
        ["-t", "filter", "-X", "DOCKER"],
        ["-t", "filter", "-X", "DOCKER-USER"],
        ["-t", "nat", "-X", "DOCKER"],
        ["-P", "FORWARD", "ACCEPT"],
    ]


def test_rules_of_a_docker_that_was_there_before_stay() -> None:
    assert removals(AFTER, AFTER.replace("[5:300]", "[9:900]").replace(":DOCKER - [0:0]", ":DOCKER - [1:60]")) == []


def test_a_host_that_dropped_forwarding_before_keeps_dropping() -> None:
    assert removals(CLEAN.replace("FORWARD ACCEPT", "FORWARD DROP"), AFTER)[-1] == ["-t", "nat", "-X", "DOCKER"]
