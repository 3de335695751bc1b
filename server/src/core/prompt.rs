//! Renders and tokenises conversations and prompts.

use crate::core::error::RequestError;
use crate::core::field_names::FieldNames;
use crate::core::model::Served;
use crate::core::request::{PromptText, Thinking};
use gristmill_llm::chat::markup::Frame;
use gristmill_llm::chat::reply::Begins;
use gristmill_llm::chat::spell::{self, Spelt};
use gristmill_llm::chat::{Message, RenderOptions, TextSpan};
use serde_json::{Map, Value};

pub struct Prompt {
    /// Token ids of the prompt.
    pub tokens: Vec<u32>,
    /// State in which the reply begins: open, within reasoning, or within the answer.
    pub begins: Begins,
}

/// Renders and tokenises a conversation.
///
/// `tools` is the list of tools in the form of chat templates, empty for none; `thinking` controls
/// the reasoning if the model supports that. If the last message is a text of the assistant,
/// generation continues it (assistant prefill).
///
/// # Errors
/// When the template refuses the conversation or fails, or the prompt does not fit into the
/// context.
pub fn chat(
    served: &Served,
    mut messages: Vec<Message>,
    tools: &[Value],
    thinking: Thinking,
    names: &FieldNames,
) -> Result<Prompt, RequestError> {
    // Every message has at least one token, regardless of the template.
    if messages.len() >= served.context {
        return Err(RequestError::context(
            names.input,
            messages.len(),
            served.context,
        ));
    }
    let texts = messages
        .iter()
        .filter_map(|message| message.content.as_str())
        .map(str::len);
    check_size(served, names.input, texts.sum())?;
    check_size(
        served,
        names.tools,
        tools.iter().map(|tool| tool.to_string().len()).sum(),
    )?;
    let begun = take_assistant_prefill(&mut messages);
    if !tools.is_empty() && !served.template.mentions("tools") {
        describe_tools(served, &mut messages, tools);
    }
    if !served.template.mentions("tool_calls") {
        messages
            .iter_mut()
            .for_each(|message| render_calls(served, message));
    }
    let options = render_options(tools, thinking, begun.is_some());
    let mut spans = served
        .template
        .render(&messages, &options)
        .map_err(|error| {
            let hint = error
                .hint()
                .map(|hint| format!("; {hint}"))
                .unwrap_or_default();
            let message = format!("{error}{hint}");
            match error.blames_conversation() {
                true => RequestError::parameter(names.input, message),
                false => RequestError::internal(message),
            }
        })?;
    let [open, _] = served.markup.think;
    let last = spans.iter().rev().find(|span| !span.text.trim().is_empty());
    let thinking = last.is_some_and(|span| span.trusted && span.text.trim_end().ends_with(open));
    let mut begins = if thinking {
        Begins::Reasoning
    } else {
        Begins::Open
    };
    if let Some(begun) = begun {
        push_assistant_prefill(served, &mut spans, begun, thinking);
        begins = Begins::Answer;
    }
    let tokens = served
        .tokenizer
        .encode_spans(&TextSpan::pairs(&spans), true);
    check_context(served, names.input, Prompt { tokens, begins })
}

/// Beginning of the answer, given by the request.
struct AssistantPrefill {
    reasoning: String,
    text: String,
}

/// Removes and returns the last message, if it is a non-empty text of the assistant without calls.
fn take_assistant_prefill(messages: &mut Vec<Message>) -> Option<AssistantPrefill> {
    let is_begun = |message: &mut Message| {
        let text = message
            .content
            .as_str()
            .is_some_and(|text| !text.is_empty());
        message.role == "assistant" && message.tool_calls.is_none() && text
    };
    let message = messages.pop_if(is_begun)?;
    let text = message.content.as_str().unwrap_or_default().to_owned();
    Some(AssistantPrefill {
        reasoning: message.reasoning_content.unwrap_or_default(),
        text,
    })
}

fn render_options(tools: &[Value], thinking: Thinking, has_prefill: bool) -> RenderOptions {
    RenderOptions {
        add_generation_prompt: true,
        // An assistant prefill has no reasoning before it, unless the request switches reasoning
        // on.
        enable_thinking: if has_prefill {
            thinking.switch.or(Some(false))
        } else {
            thinking.switch
        },
        extra: thinking
            .effort
            .map(|effort| ("reasoning_effort".to_owned(), effort.into()))
            .into_iter()
            .chain(thinking.variables)
            .collect(),
        tools: (!tools.is_empty()).then(|| tools.into()),
        ..RenderOptions::default()
    }
}

/// Appends an assistant prefill; `thinking` if the prompt ends within reasoning.
fn push_assistant_prefill(
    served: &Served,
    spans: &mut Vec<TextSpan>,
    begun: AssistantPrefill,
    thinking: bool,
) {
    let [_, close] = served.markup.think;
    let markup = |text: &str| TextSpan {
        text: text.into(),
        trusted: true,
    };
    if thinking {
        spans.extend([
            TextSpan {
                text: begun.reasoning,
                trusted: false,
            },
            markup(close),
        ]);
    }
    if let Frame::Messages(messages) = served.markup.frame {
        spans.push(markup(messages.answer));
    }
    spans.push(TextSpan {
        text: begun.text,
        trusted: false,
    });
}

/// Tokenises a text, with special tokens parsed.
///
/// # Errors
/// When it is empty or does not fit into the context.
pub fn text(served: &Served, text: &str, name: &str) -> Result<Prompt, RequestError> {
    check_size(served, name, text.len())?;
    tokens(served, served.tokenizer.encode(text, true, true), name)
}

/// Tokenises texts and tokens in turn, with special tokens parsed.
///
/// # Errors
/// When it is empty or does not fit into the context.
pub fn mixed(served: &Served, pieces: &[PromptText], name: &str) -> Result<Prompt, RequestError> {
    let bytes = pieces.iter().map(|piece| match piece {
        PromptText::Text(text) => text.len(),
        _ => 0,
    });
    check_size(served, name, bytes.sum())?;
    tokens(served, joined(served, pieces), name)
}

/// Returns the tokens of texts and tokens in turn.
pub fn joined(served: &Served, pieces: &[PromptText]) -> Vec<u32> {
    let tokens = pieces.iter().enumerate().map(|(i, piece)| match piece {
        PromptText::Text(text) => served.tokenizer.encode(text, true, i == 0),
        PromptText::Tokens(tokens) => tokens.clone(),
        PromptText::Mixed(pieces) => joined(served, pieces),
    });
    tokens.flatten().collect()
}

/// Refuses an input by its length before it is tokenised, as tokenising megabytes takes a while.
pub fn check_size(served: &Served, name: &str, bytes: usize) -> Result<(), RequestError> {
    match served.min_tokens(bytes) {
        least if least > served.max_prompt() => Err(too_long(served, name, least)),
        _ => Ok(()),
    }
}

/// Checks a prompt of tokens.
///
/// # Errors
/// When it is empty, has unknown tokens or does not fit into the context.
pub fn tokens(served: &Served, tokens: Vec<u32>, name: &str) -> Result<Prompt, RequestError> {
    if let Some(token) = tokens
        .iter()
        .find(|&&t| t as usize >= served.tokenizer.n_tokens())
    {
        let most = served.tokenizer.n_tokens();
        return Err(RequestError::parameter(
            name,
            format!("token {token} is not one of the model's {most}"),
        ));
    }
    check_context(
        served,
        name,
        Prompt {
            tokens,
            begins: Begins::Open,
        },
    )
}

fn check_context(served: &Served, name: &str, prompt: Prompt) -> Result<Prompt, RequestError> {
    match prompt.tokens.len() {
        0 => Err(RequestError::parameter(name, "the prompt is empty")),
        n if n > served.max_prompt() => Err(too_long(served, name, n)),
        _ => Ok(prompt),
    }
}

/// Error about an input of so many tokens, which exceeds the context.
fn too_long(served: &Served, name: &str, tokens: usize) -> RequestError {
    match served.pooling.is_of_encoder() {
        true => RequestError::text(name, tokens, served.context),
        false => RequestError::context(name, tokens, served.context),
    }
}

/// Describes the tools in the system message, for a template without tool support.
fn describe_tools(served: &Served, messages: &mut Vec<Message>, tools: &[Value]) {
    let list: Vec<String> = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool).to_string())
        .collect();
    let arguments = Map::from_iter([("PARAMETER".to_owned(), Value::from("VALUE"))]);
    let call = spell::calls(
        served.markup,
        &[Spelt {
            name: "NAME",
            arguments: &arguments,
        }],
    );
    let text = format!(
        "You can call these functions:\n{}\nTo call one, write this and wait:\n{call}",
        list.join("\n")
    );
    match messages
        .first_mut()
        .filter(|message| message.role == "system")
    {
        Some(system) => {
            let before = system.content.as_str().unwrap_or_default();
            system.content = format!("{before}\n\n{text}").into();
        }
        None => messages.insert(0, Message::system(text)),
    }
}

/// Renders calls and results as text, for a template without support for them.
fn render_calls(served: &Served, message: &mut Message) {
    if let Some(calls) = message.tool_calls.take() {
        let each = calls
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| call.get("function").unwrap_or(call));
        let each: Vec<(&str, Map<String, Value>)> = each
            .map(|function| (name(function), spell::arguments(&function["arguments"])))
            .collect();
        let spelt: Vec<Spelt> = each
            .iter()
            .map(|(name, arguments)| Spelt { name, arguments })
            .collect();
        let text = message.content.as_str().unwrap_or_default();
        message.content = format!("{text}{}", spell::calls(served.markup, &spelt)).into();
    }
    if message.role == "tool" {
        let text = message.content.as_str().unwrap_or_default();
        message.content = spell::result(text).into();
        message.role = "user".into();
    }
}

fn name(function: &Value) -> &str {
    function
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::demo;
    use serde_json::json;

    const NAMES: FieldNames = FieldNames {
        input: "messages",
        tools: "tools",
        tool_choice: "tool_choice",
        limit: "max_tokens",
        choices: "n",
        stop: "stop",
    };

    #[test]
    fn tools_calls_and_results_are_told_to_a_template_that_knows_none() {
        let served = demo();
        let function = |name: &str, what: &str| json!({ "type": "function", "function": { "name": name, "description": what } });
        let tools = [
            function("get_weather", "The weather in a city."),
            function("now", "The time."),
        ];
        let call = json!([{ "id": "call_1", "type": "function", "function": { "name": "now", "arguments": "{\"zone\":9}" } }]);
        let mut calling = Message::assistant("");
        calling.tool_calls = Some(call);
        let messages = vec![
            Message::user("What time is it?"),
            calling,
            Message::new("tool", "12:00"),
        ];
        let text = |tools: &[Value]| {
            let prompt = chat(
                &served,
                messages.clone(),
                tools,
                Thinking::default(),
                &NAMES,
            )
            .unwrap();
            served.tokenizer.decode(&prompt.tokens, true)
        };
        let list: Vec<String> = tools
            .iter()
            .map(|tool| tool["function"].to_string())
            .collect();
        let conversation = "<|user|>\nWhat time is it?<|assistant|>\n\
            <tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": 9}}\n</tool_call>\
            <|user|>\n<tool_response>12:00</tool_response><|assistant|>\n";
        assert_eq!(text(&[]), format!("[gMASK]<sop>{conversation}"));
        let introduced = format!(
            "[gMASK]<sop><|system|>\nYou can call these functions:\n{}\nTo call one, write this and wait:\n<tool_call>\n\
             {{\"name\": \"NAME\", \"arguments\": {{\"PARAMETER\": \"VALUE\"}}}}\n</tool_call>{conversation}",
            list.join("\n")
        );
        assert_eq!(text(&tools), introduced);
    }

    #[test]
    fn an_answer_that_has_begun_is_gone_on_with() {
        let served = demo();
        let messages = vec![
            Message::user("Hm?"),
            Message::assistant("The <|user|> capital "),
        ];
        let prompt = chat(&served, messages, &[], Thinking::default(), &NAMES).unwrap();
        assert_eq!(prompt.begins, Begins::Answer);
        let text = served.tokenizer.decode(&prompt.tokens, true);
        assert_eq!(
            text,
            "[gMASK]<sop><|user|>\nHm?<|assistant|>\nThe <|user|> capital "
        );
        let user = served.tokenizer.token_id("<|user|>").unwrap();
        assert_eq!(
            prompt.tokens.iter().filter(|&&token| token == user).count(),
            1,
            "what is told is no markup"
        );
    }
}
