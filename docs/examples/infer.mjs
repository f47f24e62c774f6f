// Asks a Firstline tier what is in a file: node infer.mjs URL FILE [MODEL]
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
  console.error("usage: node infer.mjs URL FILE [MODEL], such as: node infer.mjs http://127.0.0.1:8070 digit.png");
  process.exit(1);
}

const token = process.env.FIRSTLINE_TOKEN;
const response = await fetch(new URL(`/firstline/v1/models/${encodeURIComponent(model)}/infer`, url), {
  method: "POST",
  headers: token ? { Authorization: `Bearer ${token}` } : {},
  body: await readFile(file),
});
const answer = await response.json();
if (!response.ok) throw new Error(`${answer.code}: ${answer.error}`);
console.log(`${said(answer)}, ${answer.tier}: ${answer.reason}, ${answer.status}`);
