// Asks a Firstline tier what is in a file: node infer.mjs URL FILE [MODEL]
import { readFile } from "node:fs/promises";

const [url, file, model = "digits"] = process.argv.slice(2);
if (!file) throw new Error("usage: node infer.mjs URL FILE [MODEL]");

const token = process.env.FIRSTLINE_TOKEN;
const response = await fetch(new URL(`/firstline/v1/models/${encodeURIComponent(model)}/infer`, url), {
  method: "POST",
  headers: token ? { Authorization: `Bearer ${token}` } : {},
  body: await readFile(file),
});
const answer = await response.json();
if (!response.ok) throw new Error(`${answer.code}: ${answer.error}`);
console.log(`${answer.label} (${answer.probability.toFixed(3)}), ${answer.tier}: ${answer.reason}, ${answer.status}`);
