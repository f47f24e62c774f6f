// Asks an agent what is in a file, and hears each answer as it comes: node stream.mjs URL FILE [MODEL]
import { readFile } from "node:fs/promises";

// Every answer says how it was made; what the model says has other names in each task.
const COMMON = [
  "id", "model", "version", "request_id", "status", "certified", "durable", "tier", "reason", "confidence",
  "model_digest", "attempts", "rows", "changed", "refusal", "contract",
];

function said(answer) {
  if ("label" in answer && !("labels" in answer)) return `${answer.label} (${+(100 * answer.probability).toPrecision(4)} %)`;
  return JSON.stringify(Object.fromEntries(Object.entries(answer).filter(([name]) => !COMMON.includes(name))));
}

const [url, file, model = "digits"] = process.argv.slice(2);
if (!file) {
  console.error("usage: node stream.mjs URL FILE [MODEL], such as: node stream.mjs http://127.0.0.1:8070 digit.png");
  process.exit(1);
}

const token = process.env.FIRSTLINE_TOKEN;
const response = await fetch(new URL(`/firstline/v1/models/${encodeURIComponent(model)}/infer?wait=first`, url), {
  method: "POST",
  headers: { Accept: "text/event-stream", ...(token && { Authorization: `Bearer ${token}` }) },
  body: await readFile(file),
});
if (!response.ok) {
  const { code, error } = await response.json();
  throw new Error(`${code}: ${error}`);
}

let held = "";
for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
  const events = (held + piece).split("\n\n");
  held = events.pop();
  for (const event of events) {
    const data = event.split("\n").find((line) => line.startsWith("data: "));
    if (!data) continue; // the agent says that it is alive
    const answer = JSON.parse(data.slice("data: ".length));
    console.log(`${said(answer)}, ${answer.tier}: ${answer.status}`);
  }
}
