// Allure 3 (npm: allure). From the repository's root:
//   npx allure generate --config reports/allurerc.mjs --output reports/allure reports/allure-results
//   npx allure quality-gate --config reports/allurerc.mjs reports/allure-results
import { defineConfig } from "allure";

// The results carry the label "trouble"; these are its values, worst first.
const trouble = (name, statuses, expand = false) => ({
  name,
  matchers: [{ statuses, labels: { trouble: name } }],
  groupBy: [{ label: "parentSuite" }, "severity"],
  groupByMessage: false,
  expand,
});

export default defineConfig({
  name: "May these GPU hosts take traffic?",
  output: "reports/allure",
  historyPath: "reports/allure-history.jsonl",
  appendHistory: true,
  categories: [
    trouble("Transfer corrupt", ["failed"], true),
    trouble("Hang", ["failed"], true),
    trouble("Wrong fact", ["failed"], true),
    trouble("Endpoint", ["failed"], true),
    trouble("Drift", ["failed"], true),
    trouble("Unknown: could not be observed", ["broken"], true),
  ],
  qualityGate: {
    // Unknown is no success: a broken check closes the gate as a failed one does.
    rules: [{ maxFailures: 0, minTestsCount: 1 }],
  },
  plugins: {
    awesome: {
      options: {
        reportName: "May these GPU hosts take traffic?",
        groupBy: ["parentSuite", "suite", "subSuite"],
        theme: "auto",
        singleFile: false,
      },
    },
  },
});
