# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Approving from a chat: a look changes nothing, a press counts once, and what is over stays over."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import anyio.from_thread
import httpx
import pytest

from relight.events import RecommendationApproved, RecommendationRejected
from service.config import Audit, ConfigError, Notify, NotifyChannel, Recommend, Settings
from service.notify.channels import Alertmanager, PagerDuty, Slack, Webhook
from service.notify.making import answering, make_channels
from service.notify.notice import notice_of
from service.rules_store import RuleStore
from service.tokens import Role
from tests.api.browsing import Tags
from tests.api.running import Service, start

CHAT = NotifyChannel(name="chat", kind="slack", url="https://hooks.slack.com/x", approve_links=True)
CONSOLE = "http://relight.test"


@pytest.fixture
def asking(rules: RuleStore, portal: anyio.from_thread.BlockingPortal, tmp_path: Path) -> Service:
    """A service in approve mode, with a chat whose readers may answer."""
    settings = Settings(
        recommend=Recommend(mode="approve"),
        audit=Audit(path=tmp_path / "audit.duckdb"),
        notify=Notify(channels=(CHAT,), console_url=CONSOLE),
    )
    return start(rules, portal, settings=settings)


def asked(service: Service) -> tuple[dict[str, Any], str]:
    """An advice that waits for a person, and the link that the chat was sent."""
    service.crash()
    advice: dict[str, Any] = service.advise().json()
    return advice, link_to(service, advice["id"])


def link_to(service: Service, recommendation: str) -> str:
    """The newest link of the chat about a recommendation, as a path."""
    found = [
        notice for record in service.audit.records
        if (notice := notice_of(record.position, record.event())) is not None
        and notice.data.get("recommendation") == recommendation and notice.answer_by is not None
    ]  # fmt: skip
    address = answering(service.application.links, "chat")(found[-1])
    assert address.startswith(CONSOLE + "/console/answer/")
    return address.removeprefix(CONSOLE)


def look(service: Service, path: str, **headers: str) -> httpx.Response:
    return service.get(path, headers={"Authorization": "", "Accept": "text/html", **headers})


def press(service: Service, path: str, site: str = "same-origin", **form: str) -> httpx.Response:
    return service.post(path, data=form, headers={"Authorization": "", "Sec-Fetch-Site": site, "Accept": "text/html"})


def proof(page: httpx.Response) -> str:
    found = re.search(r'name="proof" value="([0-9a-f]{64})"', page.text)
    assert found is not None, page.text
    return found[1]


def answer(service: Service, path: str, **form: str) -> httpx.Response:
    return press(service, path, **({"proof": proof(look(service, path)), "answer": "approve"} | form))


def answers(service: Service) -> list[RecommendationApproved | RecommendationRejected]:
    kinds = (RecommendationApproved, RecommendationRejected)
    return [one for one in service.audit.events() if isinstance(one, kinds)]


# ------------------------------------------------------------------ looking and answering


def test_a_link_shows_what_would_happen_and_until_when(asking: Service) -> None:
    advice, link = asked(asking)
    page = look(asking, link)
    assert page.status_code == 200
    assert "Approve: restart without n2" in page.text and "GPU fell off bus" in page.text
    assert advice["expires_at"][:19].replace("T", " ") in page.text
    told = asking.get(link + ".json", headers={"Authorization": ""}).json()
    assert (told["action"], told["actor"], told["generation"]) == ("restart without n2", "link:chat", 1)
    assert (
        page.headers["cache-control"] == "no-store" and "default-src 'none'" in page.headers["content-security-policy"]
    )
    assert not [tag for tag, said in Tags(page.text).found if tag == "a" and "/fleet" not in str(said.get("href"))
                and not str(said.get("href")).startswith("#")]  # fmt: skip


def test_previews_of_a_chat_approve_nothing(asking: Service) -> None:
    advice, link = asked(asking)
    position = asking.application.journal.state.position
    for agent in ("Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)", "Mozilla/5.0", "curl/8"):
        for method in ("GET", "HEAD"):
            assert asking.request(method, link, headers={"Authorization": "", "User-Agent": agent}).status_code == 200
    assert asking.request("PUT", link, headers={"Authorization": ""}).status_code == 405
    assert asking.application.journal.state.position == position
    assert asking.get(f"/v1/recommendations/{advice['id']}").json()["state"] == "PROPOSED"


def test_a_press_on_the_page_answers_in_the_channels_name(asking: Service) -> None:
    advice, link = asked(asking)
    done = answer(asking, link, name="Ada \u202eL", note="seen the kernel log")
    assert done.status_code == 200 and "A controller may now do it" in done.text
    (said,) = answers(asking)
    assert isinstance(said, RecommendationApproved)
    assert (said.actor, said.generation) == ("link:chat", 1)
    assert said.note.endswith("seen the kernel log") and said.note.startswith("says to be Ada")
    assert asking.get(f"/v1/recommendations/{advice['id']}").json()["actionable"]


def test_a_rejection_leaves_it_to_the_scheduler(asking: Service) -> None:
    advice, link = asked(asking)
    assert "own rule applies" in answer(asking, link, answer="reject").text
    assert asking.get(f"/v1/recommendations/{advice['id']}").json()["state"] == "REJECTED"


def test_a_post_that_no_page_of_ours_made_answers_nothing(asking: Service) -> None:
    _, link = asked(asking)
    good = proof(look(asking, link))
    assert press(asking, link, answer="approve").status_code == 403
    assert press(asking, link, answer="approve", proof="0" * 64).status_code == 403
    assert press(asking, link, "cross-site", answer="approve", proof=good).status_code == 403
    assert press(asking, link, answer="perhaps", proof=good).status_code == 422
    assert asking.post(link, json={"answer": "approve"}, headers={"Authorization": ""}).status_code == 415
    assert answers(asking) == []


# ------------------------------------------------------------------ links that are worth nothing


def test_a_link_answers_once(asking: Service) -> None:
    _, link = asked(asking)
    kept = proof(look(asking, link))
    assert answer(asking, link).status_code == 200
    for again in (look(asking, link), press(asking, link, proof=kept, answer="approve"),
                  press(asking, link, proof=kept, answer="reject")):  # fmt: skip
        assert again.status_code == 409
        assert "approved by link:chat" in again.text
    assert len(answers(asking)) == 1


def test_of_many_who_press_at_once_one_is_told_that_it_counted(asking: Service) -> None:
    _, link = asked(asking)
    kept, barrier, codes = proof(look(asking, link)), threading.Barrier(6), list[int]()

    def press_now() -> None:
        barrier.wait()
        codes.append(press(asking, link, proof=kept, answer="approve").status_code)

    threads = [threading.Thread(target=press_now) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(codes) == [200, 409, 409, 409, 409, 409]
    assert len(answers(asking)) == 1


def test_after_its_time_a_link_answers_nothing_and_says_what_goes_on(asking: Service) -> None:
    advice, link = asked(asking)
    kept = proof(look(asking, link))
    asking.clock.advance(minutes=14, seconds=59)
    assert look(asking, link).status_code == 200
    asking.clock.advance(seconds=1)
    for late in (look(asking, link), press(asking, link, proof=kept, answer="approve")):
        assert late.status_code == 410
        assert "normal scheduling goes on" in late.text
    asking.application.advisor.sweep()
    assert look(asking, link).status_code == 410
    assert asking.get(f"/v1/recommendations/{advice['id']}").json()["state"] == "EXPIRED"
    assert answers(asking) == []


def test_a_revision_revokes_the_link_and_sends_a_new_one(asking: Service) -> None:
    service, clock = asking, asking.clock
    service.put_attempt()
    service.put_attempt(state="FAILED", exit_code=1)
    advice = service.advise().json()
    old = link_to(service, advice["id"])
    kept = proof(look(service, old))
    clock.advance(seconds=5)
    service.crash()  # the kernel's line came late
    service.application.advisor.attribute("a-1")
    assert service.get(f"/v1/recommendations/{advice['id']}").json()["generation"] == 2
    for stale in (look(service, old), press(service, old, proof=kept, answer="approve")):
        assert stale.status_code == 409
        assert "revised since this link was sent" in stale.text
    assert answers(service) == []
    fresh = link_to(service, advice["id"])
    assert fresh != old
    assert answer(service, fresh).status_code == 200


def test_an_answer_elsewhere_and_a_lower_mode_end_a_link_too(asking: Service) -> None:
    advice, link = asked(asking)
    asking.set_mode("monitor")
    refused = look(asking, link)
    assert (refused.status_code, "nobody would act" in refused.text) == (409, True)
    asking.set_mode("approve")
    asking.post(f"/v1/recommendations/{advice['id']}/approve", json={"actor": "bo"})
    assert "approved by bo" in look(asking, link).text


def test_a_changed_link_and_one_of_another_key_are_refused(asking: Service, service: Service) -> None:
    _, link = asked(asking)
    generation = link.replace(".1.", ".2.", 1)
    for forged in (link[:-2] + "AA", generation, link.replace("chat", "root"), "/console/answer/nonsense"):
        assert look(asking, forged).status_code == 403, forged
    assert look(service, link).status_code == 404, "a service without such links knows none"
    assert answers(asking) == []


def test_a_link_opens_nothing_but_its_own_page(asking: Service) -> None:
    _, link = asked(asking)
    token = link.rpartition("/")[2]
    for path in ("/console/fleet", "/v1/recommendations"):
        assert asking.get(path, headers={"Authorization": f"Bearer {token}"}).status_code in {303, 401}


# ------------------------------------------------------------------ in messages


def test_a_message_says_what_happens_without_an_answer_and_links_to_one(asking: Service) -> None:
    asked(asking)
    record = next(one for one in asking.audit.records if one.event().kind == "recommendation.issued")
    notice = notice_of(record.position, record.event())
    assert notice is not None
    assert notice.default.startswith("No answer until 12:15:05 UTC is a no: normal scheduling goes on.")
    asks = answering(asking.application.links, "chat")
    where = asks(notice)
    said = [
        channel.post(notice, asking.clock.at)
        for channel in (Slack(name="s", url="x", console=CONSOLE, answering=asks),
                        Webhook(name="w", url="x", console=CONSOLE, answering=asks),
                        PagerDuty(name="p", routing_key="k", console=CONSOLE, answering=asks),
                        Alertmanager(name="a", url="x", console=CONSOLE, answering=asks))
    ]  # fmt: skip
    slack, hook, pager, alert = (json.loads(one.body) for one in said if one is not None)
    assert f"<{where}|Approve or reject>" in slack["blocks"][0]["text"]["text"]
    assert hook["data"]["answer_link"] == where
    assert pager["payload"] and pager["links"][0]["href"] == where
    assert alert[0]["annotations"]["answer"] == where


def test_only_channels_that_were_given_a_say_get_a_link(asking: Service) -> None:
    asked(asking)
    record = next(one for one in asking.audit.records if one.event().kind == "recommendation.issued")
    notice = notice_of(record.position, record.event())
    quiet = CHAT.model_copy(update={"name": "quiet", "approve_links": False})
    made = make_channels(Notify(channels=(CHAT, quiet), console_url=CONSOLE), Path.read_text, asking.application.links)
    assert notice is not None
    texts = [channel.post(notice, asking.clock.at).body.decode() for _, channel in made]  # type: ignore[union-attr]
    assert ["/console/answer/" in one for one in texts] == [True, False]


def test_settings_for_links_are_checked_at_the_start(
    tmp_path: Path, rules: RuleStore, portal: anyio.from_thread.BlockingPortal
) -> None:
    with pytest.raises(ValueError, match="need console_url"):
        Notify(channels=(CHAT,))
    key = tmp_path / "key"
    key.write_text("00")
    key.chmod(0o644)
    said = Notify(channels=(CHAT,), console_url=CONSOLE, link_key_file=key)
    with pytest.raises(ConfigError, match="chmod 600"):
        start(rules, portal, settings=Settings(audit=Audit(path=tmp_path / "a.duckdb"), notify=said))


def test_the_generation_guards_answers_through_the_api_too(asking: Service) -> None:
    advice, _ = asked(asking)
    where = f"/v1/recommendations/{advice['id']}/approve"
    stale = asking.as_(Role.OPERATOR).post(where, json={"actor": "ada", "generation": 0})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_generation")
    assert asking.post(where, json={"actor": "ada", "generation": 1}).status_code == 200
