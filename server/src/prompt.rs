//! From a conversation to tokens.

use crate::error::ApiError;
use crate::grammar::Style;
use crate::model::Served;
use crate::reply::{CALL, CALLED, THINK};
use gristmill_llm::chat::{Message, RenderOptions, Span};
use serde_json::{Value, json};

/// A prompt.
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Does it end within reasoning, which the answer goes on with?
    pub thinking: bool,
}

/// How the model's template wants calls written.
pub fn style(served: &Served) -> Style {
    if served.template.mentions("<arg_key>") { Style::Tags } else { Style::Json }
}

/// The prompt of a conversation. `tools` is the list of tools as the request has it, empty for none; `thinking` switches reasoning on or
/// off, where the model can.
///
/// # Errors
/// When the template refuses the conversation or fails, or it does not fit into the context.
pub fn chat(
    served: &Served,
    mut messages: Vec<Message>,
    tools: &[Value],
    thinking: Option<bool>,
) -> Result<Prompt, ApiError> {
    // Every message takes a token at least, whatever the template.
    if messages.len() >= served.context {
        return Err(ApiError::context("messages", messages.len(), served.context));
    }
    let texts = messages.iter().filter_map(|message| message.content.as_str()).map(str::len);
    plausible(served, "messages", texts.sum())?;
    plausible(served, "tools", tools.iter().map(|tool| tool.to_string().len()).sum())?;
    if !tools.is_empty() && !served.template.mentions("tools") {
        introduce(&mut messages, tools);
    }
    if !served.template.mentions("tool_calls") {
        messages.iter_mut().for_each(spell_out);
    }
    let options = RenderOptions {
        add_generation_prompt: true,
        enable_thinking: thinking,
        tools: (!tools.is_empty()).then(|| tools.into()),
        ..RenderOptions::default()
    };
    let spans = served.template.render(&messages, &options).map_err(|error| {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        let message = format!("{error}{hint}");
        match error.blames_conversation() {
            true => ApiError::parameter("messages", message),
            false => ApiError::internal(message),
        }
    })?;
    let last = spans.iter().rev().find(|span| !span.text.trim().is_empty());
    let thinking = last.is_some_and(|span| span.trusted && span.text.trim_end().ends_with(THINK));
    let tokens = served.tokenizer.encode_spans(&Span::pairs(&spans), true);
    fitting(served, "messages", Prompt { tokens, thinking })
}

/// The prompt of a text, special tokens parsed.
///
/// # Errors
/// When it is empty or does not fit.
pub fn text(served: &Served, text: &str) -> Result<Prompt, ApiError> {
    plausible(served, "prompt", text.len())?;
    tokens(served, served.tokenizer.encode(text, true, true))
}

/// Refuses what cannot fit before it is looked at: megabytes take a while to cut into tokens.
fn plausible(served: &Served, name: &str, bytes: usize) -> Result<(), ApiError> {
    match served.least_tokens(bytes) {
        least if least >= served.context => Err(ApiError::context(name, least, served.context)),
        _ => Ok(()),
    }
}

/// The prompt of tokens.
///
/// # Errors
/// When there are none, they are not of the vocabulary, or they do not fit.
pub fn tokens(served: &Served, tokens: Vec<u32>) -> Result<Prompt, ApiError> {
    if let Some(token) = tokens.iter().find(|&&t| t as usize >= served.tokenizer.n_tokens()) {
        let most = served.tokenizer.n_tokens();
        return Err(ApiError::parameter("prompt", format!("token {token} is not one of the model's {most}")));
    }
    fitting(served, "prompt", Prompt { tokens, thinking: false })
}

fn fitting(served: &Served, name: &str, prompt: Prompt) -> Result<Prompt, ApiError> {
    match prompt.tokens.len() {
        0 => Err(ApiError::parameter(name, "the prompt is empty")),
        n if n >= served.context => Err(ApiError::context(name, n, served.context)),
        _ => Ok(prompt),
    }
}

/// Tells a model whose template knows no tools what there is and how to call it.
fn introduce(messages: &mut Vec<Message>, tools: &[Value]) {
    let list: Vec<String> = tools.iter().map(|tool| tool.get("function").unwrap_or(tool).to_string()).collect();
    let text = format!(
        "You can call these functions:\n{}\nTo call one, write {CALL}{{\"name\": NAME, \"arguments\": {{…}}}}{CALLED} and nothing \
         after it. Its result is in the next message.",
        list.join("\n")
    );
    match messages.first_mut().filter(|message| message.role == "system") {
        Some(system) => {
            let before = system.content.as_str().unwrap_or_default();
            system.content = format!("{before}\n\n{text}").into();
        }
        None => messages.insert(0, Message::system(text)),
    }
}

/// Writes calls and results as text, for a template that knows neither.
fn spell_out(message: &mut Message) {
    if let Some(calls) = message.tool_calls.take() {
        let mut text = message.content.as_str().unwrap_or_default().to_owned();
        for call in calls.as_array().into_iter().flatten() {
            let function = call.get("function").unwrap_or(call);
            let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("{}");
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
            let call = json!({ "name": function.get("name"), "arguments": arguments });
            text += &format!("{CALL}{call}{CALLED}");
        }
        message.content = text.into();
    }
    if message.role == "tool" {
        let text = message.content.as_str().unwrap_or_default();
        message.content = format!("<tool_response>{text}</tool_response>").into();
        message.role = "user".into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Text;
    use gristmill_llm::file::ModelFile;
    use gristmill_llm::language;
    use gristmill_llm::sampling::SamplingParams;

    /// The demo model, whose template knows no tools.
    fn demo() -> Served {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo-glm-Q4_0.gguf");
        let file = ModelFile::open(&path).unwrap();
        let tokenizer = language::tokenizer(file.metadata()).unwrap();
        let (template, _) =
            language::template(file.metadata(), &tokenizer, &gristmill_llm::chat::Isolation::InProcess).unwrap();
        let text = Text { name: "demo".into(), tokenizer, template, sampling: SamplingParams::default() };
        Served::new(text, 2048, 2048)
    }

    #[test]
    fn tools_calls_and_results_are_told_to_a_template_that_knows_none() {
        let served = demo();
        let function =
            |name: &str, what: &str| json!({ "type": "function", "function": { "name": name, "description": what } });
        let tools = [function("get_weather", "The weather in a city."), function("now", "The time.")];
        let call =
            json!([{ "id": "call_1", "type": "function", "function": { "name": "now", "arguments": "{\"zone\":9}" } }]);
        let mut calling = Message::assistant("");
        calling.tool_calls = Some(call);
        let messages = vec![Message::user("What time is it?"), calling, Message::new("tool", "12:00")];
        let text = |tools: &[Value]| {
            let prompt = chat(&served, messages.clone(), tools, None).unwrap();
            served.tokenizer.decode(&prompt.tokens, true)
        };
        let list: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
        let conversation = "<|user|>\nWhat time is it?<|assistant|>\n\
            <tool_call>{\"name\":\"now\",\"arguments\":{\"zone\":9}}</tool_call>\
            <|user|>\n<tool_response>12:00</tool_response><|assistant|>\n";
        assert_eq!(text(&[]), format!("[gMASK]<sop>{conversation}"));
        let introduced = format!(
            "[gMASK]<sop><|system|>\nYou can call these functions:\n{}\nTo call one, write \
             <tool_call>{{\"name\": NAME, \"arguments\": {{…}}}}</tool_call> and nothing after it. Its result is in the next \
             message.{conversation}",
            list.join("\n")
        );
        assert_eq!(text(&tools), introduced);
    }
}
