"use strict";
const at = id => document.getElementById(id);
const history_ = [];
let running = null;

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;  // never markup: the model's words are only words
  return element;
}

function turn(who, name) {
  const box = make("div", "turn " + name);
  box.append(make("h3", "", who));
  at("log").append(box);
  return box;
}

function answerBox(parent, title) {
  const box = make("div");
  if (title) box.append(make("h3", "", title));
  const text = make("p", "text"), figures = make("p", "figures");
  box.append(text, figures);
  parent.append(box);
  return { box, text, figures };
}

function number(id) {
  const value = at(id).value.trim();
  return value === "" ? undefined : Number(value);
}

function request(extra) {
  const system = at("system").value.trim();
  const body = {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...history_],
    stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, trace_drafts: true,
    temperature: number("temperature"), top_p: number("top_p"), max_tokens: number("max_tokens"), seed: number("seed"),
    num_speculative_tokens: number("drafts"), verify: at("verify").value || undefined,
    drafter: at("drafter").value || undefined,
  };
  return { ...body, ...extra };
}

async function* events(body, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    throw new Error(problem && problem.error ? problem.error.message : "the server answered " + response.status);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ") || part === "data: [DONE]") continue;
      const chunk = JSON.parse(part.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}

function chart(points) {
  const last = points.length ? points[points.length - 1] : null;
  const width = Math.max(points.length - 1, 1);
  at("curve").setAttribute("points", points.map((p, i) => (i * 300 / width).toFixed(1) + "," + (98 - 96 * p).toFixed(1)).join(" "));
  at("chart").setAttribute("aria-label", last === null ? "No drafts yet" : "Acceptance, now " + percent(last) + ", over " + points.length + " steps");
}

/* Of each place in a draft: [drafted, accepted]. A step is a run of accepted drafts, and the rejected ones that its last token replaced. */
function bars(places) {
  const rows = places.map(([drafted, accepted], i) => {
    const row = make("li", ""), meter = make("meter", "");
    meter.value = accepted / drafted;
    meter.setAttribute("aria-label", "position " + (i + 1));
    row.append(make("span", "", String(i + 1)), meter, make("span", "n", accepted + " of " + drafted));
    return row;
  });
  at("bars").replaceChildren(...(rows.length ? rows : [make("li", "note", "No drafts yet.")]));
}

const kinds = { draft: "accepted draft", recovered: "recovered", bonus: "bonus", target: "plain" };

function chance(x) {
  return x >= 0.9995 ? "1.000" : x < 0.0005 ? x.toExponential(1) : x.toFixed(3);
}

/* What the tooltip says of a token, in lines. */
function judged(piece) {
  const name = piece.origin.split(":");
  const lines = [(kinds[name[0]] || name[0]) + (name[1] ? " by " + name[1] : "") + ": p = " + chance(piece.p)
    + (piece.q === null ? "" : ", q = " + chance(piece.q) + ", min(1, p/q) = " + chance(Math.min(1, piece.p / piece.q)))];
  if (name[0] === "draft" && piece.q === null) lines.push("q: a point mass, kept with probability p");
  piece.rejected.forEach((d, i) => lines.push("rejected “" + d.text + "”" + (d.p === null ? ", behind the refusal" : ": p = " + chance(d.p)
    + (d.q === null ? "" : ", q = " + chance(d.q) + ", min(1, p/q) = " + chance(Math.min(1, d.p / d.q))))));
  return lines;
}

function token(piece) {
  const span = make("span", piece.origin === "target" ? "" : piece.origin.split(":")[0], piece.text);
  if (piece.p === undefined) return [span];
  span.judged = judged(piece);
  span.tabIndex = -1;
  return [...piece.rejected.map(d => make("del", "", d.text)), span];
}

function showTip(span) {
  const tip = at("tip");
  tip.replaceChildren(...span.judged.map(line => make("p", "", line)));
  tip.hidden = false;
  const place = span.getClientRects()[0] || span.getBoundingClientRect(), box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(place.left, innerWidth - box.width - 4)) + "px";
  tip.style.top = (place.top > box.height + 8 ? place.top - box.height - 6 : place.bottom + 6) + "px";
  span.setAttribute("aria-describedby", "tip");
}

function hideTip(event) {
  at("tip").hidden = true;
  if (event && event.target.removeAttribute) event.target.removeAttribute("aria-describedby");
}

const percent = x => Math.round(100 * x) + " %";

/* One answer, shown as it comes. Returns its text and figures. */
async function answer(body, place, signal) {
  const start = performance.now();
  const made = { text: "", tokens: 0, drafted: 0, accepted: 0, passes: 0, first: null, atFirst: 0, seconds: 0 };
  const steps = [], points = [], places = [];
  let run = 0;  // drafts of this step that stood so far
  const add = (i, stood) => { places[i] = places[i] || [0, 0]; places[i][0] += 1; places[i][1] += stood; };
  const tally = piece => {
    if (piece.p === undefined) return;
    if (piece.origin.startsWith("draft")) return add(run++, 1);
    piece.rejected.forEach((_, i) => add(run + i, 0));
    run = 0;
  };
  const show = () => {
    made.seconds = (performance.now() - start - (made.first || 0)) / 1000;
    made.perSecond = made.tokens > made.atFirst ? (made.tokens - made.atFirst) / Math.max(made.seconds, 1e-3) : 0;
    made.perPass = made.tokens / Math.max(made.passes, 1);
    at("speed").textContent = made.perSecond.toFixed(1);
    at("pace").textContent = made.perPass.toFixed(2);
    at("count").textContent = made.tokens;
    at("rate").textContent = made.drafted ? made.accepted + " of " + made.drafted + " (" + percent(made.accepted / made.drafted) + ")" : "no drafts";
    at("first").textContent = made.first === null ? "–" : (made.first / 1000).toFixed(2) + " s";
  };
  chart([]);
  bars([]);
  for await (const chunk of events(body, signal)) {
    if (chunk.usage) {
      const details = chunk.usage.completion_tokens_details;
      const drafted = details.draft_tokens - made.drafted, accepted = details.accepted_draft_tokens - made.accepted;
      if (drafted > 0) {
        steps.push([drafted, accepted]);
        const recent = steps.slice(-16);
        points.push(recent.reduce((s, x) => s + x[1], 0) / recent.reduce((s, x) => s + x[0], 0));
        chart(points);
      }
      made.tokens = chunk.usage.completion_tokens;
      made.drafted = details.draft_tokens;
      made.accepted = details.accepted_draft_tokens;
      made.passes = Math.max(made.tokens - made.accepted, 1);
      if (made.first === null && made.tokens) { made.first = performance.now() - start; made.atFirst = made.tokens; }
    }
    if (chunk.metrics) made.passes = chunk.metrics.num_passes;
    for (const choice of chunk.choices) {
      for (const piece of choice.token_origins || []) {
        place.text.append(...token(piece));
        tally(piece);
      }
      made.text += (choice.delta && choice.delta.content) || "";
    }
    show();
    bars(places);
    const log = at("log");
    log.scrollTop = log.scrollHeight;
  }
  place.figures.textContent = made.tokens + " tokens, " + made.perSecond.toFixed(1) + " per second, " + made.perPass.toFixed(2) + " per pass"
    + (made.drafted ? ", " + percent(made.accepted / made.drafted) + " of drafts accepted" : ", no drafts");
  return made;
}

async function single(signal) {
  const box = turn("model", "model");
  const made = await answer(request({}), answerBox(box), signal);
  history_.push({ role: "assistant", content: made.text });
  return "Answer complete: " + box.querySelector(".figures").textContent;
}

/* The same prompt without drafts and with them, one after the other, so that neither takes the other's time. */
async function race(signal) {
  const box = turn("model, twice", "model pair");
  const left = answerBox(box, "plain"), right = answerBox(box, "speculative");
  // Reporting p and q takes time of its own, so a race does without.
  const shared = { trace_drafts: undefined, return_token_origins: true, seed: number("seed") ?? Math.floor(Math.random() * 2 ** 31) };
  // Sampled text is the same text only under the rule that takes the same random numbers.
  if (number("temperature") !== 0) shared.verify = "match";
  const drafts = number("drafts");
  const plain = await answer(request({ ...shared, num_speculative_tokens: 0 }), left, signal);
  const fast = await answer(request({ ...shared, num_speculative_tokens: drafts === 0 ? undefined : drafts }), right, signal);
  const same = plain.text === fast.text;
  const times = fast.perSecond / Math.max(plain.perSecond, 1e-9);
  const verdict = make("p", "verdict" + (same ? "" : " differs"));
  verdict.append(make("strong", "", same ? "identical" : "different"));
  verdict.append(same ? ": both answers are the same text, character for character. " : ": the answers differ. ");
  verdict.append("Speculative decoding ran at " + times.toFixed(2) + " times the speed of plain, in " + fast.passes + " passes instead of " + plain.passes + ".");
  box.append(verdict);
  history_.push({ role: "assistant", content: fast.text });
  return verdict.textContent;
}

async function send() {
  const prompt = at("prompt").value.trim();
  if (running || !prompt) return;
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("prompt").value = "";
  turn("you", "user").append(make("p", "text", prompt));
  history_.push({ role: "user", content: prompt });
  at("status").textContent = "The answer is being written.";
  try {
    at("status").textContent = await (at("race").checked ? race : single)(running.signal);
  } catch (problem) {
    const stopped = problem.name === "AbortError";
    const words = stopped ? "stopped" : problem.message;
    const box = turn(stopped ? "stopped" : "error", "note-turn");
    box.append(make("p", "text" + (stopped ? "" : " error"), words));
    at("status").textContent = words;
    history_.pop();  // the question without its answer
  } finally {
    running = null;
    at("send").disabled = false;
    at("stop").disabled = true;
    at("log").scrollTop = at("log").scrollHeight;
    at("prompt").focus();
  }
}

/* The request that Send would make, for a terminal. */
function curl() {
  const draft = at("prompt").value.trim();
  const body = request({ stream: undefined, stream_options: undefined, trace_drafts: undefined });
  body.messages = [...body.messages, ...(draft ? [{ role: "user", content: draft }] : [])];
  if (body.messages.length && body.messages[body.messages.length - 1].role === "assistant") body.messages.pop();  // ask the last question again
  const quoted = "'" + JSON.stringify(body).replaceAll("'", "'\\''") + "'";
  return "curl " + location.origin + "/v1/chat/completions -H 'Content-Type: application/json' -d " + quoted;
}

at("curl").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(curl());
    at("status").textContent = at("curl").textContent = "Copied";
  } catch {
    turn("curl", "note-turn").append(make("p", "text", curl()));  // a browser without a clipboard for this page
    at("status").textContent = "The command is in the log.";
  }
  setTimeout(() => { at("curl").textContent = "Copy as curl"; }, 1500);
});
at("refused").addEventListener("change", () => at("log").classList.toggle("refused", at("refused").checked));

const isToken = element => element.judged !== undefined;
for (const [name, act] of [["mouseover", showTip], ["focusin", showTip], ["mouseout", null], ["focusout", null]]) {
  at("log").addEventListener(name, event => { if (isToken(event.target)) act ? act(event.target) : hideTip(event); });
}
at("log").addEventListener("scroll", () => hideTip());
/* One stop of the Tab key for all tokens; arrows walk from token to token. */
at("log").addEventListener("keydown", event => {
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  const tokens = [...at("log").querySelectorAll(".text > span[tabindex]")];
  if (step === undefined || !tokens.length) return;
  const now = tokens.indexOf(document.activeElement);
  const next = now < 0 ? (step > 0 && step !== Infinity ? 0 : tokens.length - 1) : Math.max(0, Math.min(tokens.length - 1, now + step));
  tokens[next].focus();
  event.preventDefault();
});
at("ask").addEventListener("submit", event => { event.preventDefault(); send(); });
at("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", event => { if (event.key === "Escape" && running) running.abort(); });
at("stop").addEventListener("click", () => running && running.abort());
at("clear").addEventListener("click", () => {
  if (running) running.abort();
  history_.length = 0;
  at("log").replaceChildren();
  at("status").textContent = "The conversation was cleared.";
  at("prompt").focus();
});
at("settings").addEventListener("submit", event => event.preventDefault());

fetch("/v1/models").then(r => r.json()).then(list => {
  const model = list.data[0];
  at("about").textContent = model.id + (model.max_model_len ? ", context " + model.max_model_len + " tokens" : "");
  for (const name of model.drafters || []) if (name !== "prediction") at("drafter").append(make("option", "", name));
  document.title = model.id + " · headstart";
}).catch(() => { at("about").textContent = "the server does not answer"; });
at("prompt").focus();
