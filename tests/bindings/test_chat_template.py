"""Chat templates: what they may do, and what the sandbox refuses."""

import pytest

from fastllm_core.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate
from fastllm_core.errors import ChatTemplateError

USER = [{"role": "user", "content": "hi <b>"}]


def render(source: str, messages=USER, **options) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_blocks_are_trimmed():
    assert (
        render("{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n")
        == "hi <b>\n"
    )


def test_names_of_the_field():
    assert render("{{ bos_token }}{{ add_generation_prompt }}") == "<s>True"
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    assert render("{{ tools | tojson }}", tools=[{"a": "é<"}]) == '[{"a": "é<"}]'
    assert render("{{ tools | tojson(indent=1) }}", tools=[1]) == "[\n 1\n]"
    assert render("{{ strftime_now('%Y') | length }}") == "4"


def test_loop_controls_and_generation_block():
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "hi <b>!"


def test_text_parts_are_joined():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render("{{ messages[0].content }}", parts) == "a\nb"


def test_continue_final_message():
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    messages = [*USER, {"role": "assistant", "content": "Sure, "}]
    out = render(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert out == "[user]hi <b>[end][assistant]Sure,"
    with pytest.raises(ChatTemplateError, match="cannot both"):
        render(source, messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update({'a': 1}) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "range"),
        ("{{ 'x' * 999999999 }}", "repetition"),
        ("{{ 2 ** 99999999 }}", "too large"),
        ("{{ messages[5].content }}", "no element 5"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{% include '/etc/passwd' %}", "chat template"),
    ],
)
def test_refusals(source, words):
    with pytest.raises(ChatTemplateError, match=words):
        render(source)


def test_range_budget_is_per_rendering():
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}ok", {})
    assert [template.render(USER) for _ in range(3)] == ["ok"] * 3


def test_output_limit(monkeypatch):
    monkeypatch.setattr("fastllm_core.chat_template.MAX_RENDERED_CHARS", 100)
    with pytest.raises(ChatTemplateError, match="100 characters"):
        render("{% for i in range(1000) %}xxxxxxxxxx{% endfor %}")


def test_template_limit():
    with pytest.raises(ChatTemplateError, match=str(MAX_TEMPLATE_CHARS)):
        ChatTemplate("x" * (MAX_TEMPLATE_CHARS + 1), {})


@pytest.mark.parametrize(
    "messages",
    [
        "hi",
        {"role": "user"},
        [5],
        [{"content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
    ],
)
def test_messages_that_are_none(messages):
    with pytest.raises(ChatTemplateError, match="message"):
        render("x", messages)


def test_own_messages_are_not_changed():
    mine = [{"role": "user", "content": ["a", "b"]}]
    render("{{ messages }}", mine)
    assert mine == [{"role": "user", "content": ["a", "b"]}]
