{{/* Names, labels and images. Values may be null anywhere (overlays of GitOps tools do that), so nothing here reads through a missing map. */}}

{{- define "glm5.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Cut to 40 so that the longest suffix of a child (-cleanup, -edit, -test) stays inside 63. */}}
{{- define "glm5.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "glm5.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "glm5.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of objects outside namespaces. The colon (RBAC names may hold one) keeps a-b + c apart from a + b-c. */}}
{{- define "glm5.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "glm5.fullname" .) -}}
{{- end -}}

{{- define "glm5.selectorLabels" -}}
app.kubernetes.io/name: {{ include "glm5.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "glm5.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{ include "glm5.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: glm5
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end -}}

{{- define "glm5.serviceAccountName" -}}
{{- $account := .Values.serviceAccount | default dict -}}
{{- $name := $account.name | default "" -}}
{{- if eq (get $account "create" | toString) "false" -}}
{{- required "serviceAccount.name: name an existing ServiceAccount when serviceAccount.create is false" $name -}}
{{- else -}}
{{- $name | default (include "glm5.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* A scalar as text. YAML numbers reach Helm as floats: a tag 20260916 must not become 2.0260916e+07. */}}
{{- define "glm5.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq . (float64 (int64 .)) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else if kindIs "invalid" . -}}
{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/*
An image reference from {registry, repository, tag, digest}. Call with (dict "image" map "at" its-path "name" default-repository "root" $).
A digest may come with or without "sha256:", or pasted into the tag; with a digest and no tag there is no default tag.
global.imageRegistry replaces the registry, also one that was written into the repository.
*/}}
{{- define "glm5.image" -}}
{{- $image := .image | default dict -}}
{{- $global := (.root.Values.global | default dict).imageRegistry | default "" | trimSuffix "/" -}}
{{- $repository := $image.repository | default .name -}}
{{- $registry := $image.registry | default "" | trimSuffix "/" -}}
{{- if $global -}}
{{- $first := splitList "/" $repository | first -}}
{{- if and (contains "/" $repository) (or (contains "." $first) (contains ":" $first) (eq $first "localhost")) -}}
{{- $repository = splitList "/" $repository | rest | join "/" -}}
{{- end -}}
{{- $registry = $global -}}
{{- end -}}
{{- /* From a values file every number arrives as a float, so 12e4 and 1.10 are already lost; --set keeps digits as they are. */}}
{{- if kindIs "float64" $image.tag -}}{{- fail (printf "%s.tag: YAML reads it as a number; put it in quotes" .at) -}}{{- end -}}
{{- $tag := $image.tag | default "" | toString -}}
{{- $digest := $image.digest | default "" -}}
{{- if hasPrefix "sha256:" $tag -}}
{{- if $digest -}}{{- fail (printf "%s.tag holds a digest and %s.digest is set too: keep one" .at .at) -}}{{- end -}}
{{- $digest = $tag -}}
{{- $tag = "" -}}
{{- end -}}
{{- $digest = $digest | trimPrefix "sha256:" -}}
{{- /* The rule of operator/glm5_operator/images.py; tests/unit/chart/test_images.py holds the two together. */}}
{{- if and $tag (not $digest) -}}
{{- if regexMatch "(^|[._-])(latest|nightly|main|master)([._-]|$)" $tag -}}
{{- fail (printf "%s.tag: %s says nothing about what runs tomorrow; name a version, a date or a digest" .at $tag) -}}
{{- else if not (regexMatch "[0-9]" $tag) -}}
{{- fail (printf "%s.tag: %s has no digit, so it is neither version nor date; name one, or a digest" .at $tag) -}}
{{- end -}}
{{- end -}}
{{- if not (or $tag $digest) -}}{{- $tag = .tag | default .root.Chart.AppVersion -}}{{- end -}}
{{- if $registry -}}{{ $registry }}/{{- end -}}
{{- $repository -}}
{{- if $tag -}}:{{ $tag }}{{- end -}}
{{- if $digest -}}@sha256:{{ $digest }}{{- end -}}
{{- end -}}

{{- define "glm5.operatorImage" -}}
{{- include "glm5.image" (dict "image" .Values.image "at" "image" "name" "glm5-operator" "root" .) -}}
{{- end -}}

{{/*
What every pod of this chart shares: the operator, the clean-up hook, the test.
No service links: a Service named glm5-operator would add GLM5_OPERATOR_SERVICE_HOST and the like, which the operator's strict settings refuse.
*/}}
{{- define "glm5.podCommon" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  # Where every node has one, the operator's own taints must not lock out the operator, or the hook that takes them off.
  {{- range list "glm5.dev/role" "glm5.dev/health" "glm5.dev/moving" }}
  - key: {{ . }}
    operator: Exists
    effect: NoSchedule
  {{- end }}
  {{- with .Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .Values.podSecurityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{/* Not a value: a pod of this chart that needs more than this is a fault of the chart. */}}
{{- define "glm5.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "glm5.cleanupHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "glm5.tmpVolume" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSizeLimit | default "64Mi" | quote }}
{{- end -}}

{{/* What the operator reads from its environment; names and meaning: operator/glm5_operator/settings.py. */}}
{{- define "glm5.env" -}}
{{- $engines := .Values.engines | default dict -}}
{{- $native := ($engines.native | default dict).image | default dict -}}
{{- $vllm := ($engines.vllm | default dict).image | default dict -}}
{{- if not (or $vllm.registry $vllm.repository) -}}
{{- $vllm = merge (dict "registry" "quay.io") $vllm -}}
{{- end -}}
- name: GLM5_OPERATOR_LEASE_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with .Values.watchNamespaces }}
- name: GLM5_OPERATOR_SCOPE_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- $admission := .Values.admission | default dict }}
{{- with $admission.exemptNamespaces }}
- name: GLM5_OPERATOR_AUDIT_EXEMPT_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- if kindIs "slice" $admission.daemonSetNamespaces }}
{{- /* An empty list is a variable without a value, which is not the setting's default; the API server would drop `value: ""`. */}}
- name: GLM5_OPERATOR_AUDIT_DAEMON_SET_NAMESPACES
{{- with join "," $admission.daemonSetNamespaces }}
  value: {{ . | quote }}
{{- end }}
{{- end }}
- name: GLM5_OPERATOR_LOG_LEVEL
  value: {{ .Values.logLevel | default "info" | quote }}
- name: GLM5_OPERATOR_LOG_FORMAT
  value: {{ .Values.logFormat | default "text" | quote }}
- name: GLM5_OPERATOR_SITE_CLUSTER_DOMAIN
  value: {{ .Values.clusterDomain | default "cluster.local" | quote }}
- name: GLM5_OPERATOR_SITE_NATIVE_IMAGE
  value: {{ include "glm5.image" (dict "image" $native "at" "engines.native.image" "name" "glm5-runtime" "root" .) | quote }}
- name: GLM5_OPERATOR_SITE_VLLM_IMAGE
  value: {{ include "glm5.image" (dict "image" $vllm "at" "engines.vllm.image" "name" "ascend/vllm-ascend" "tag" "v0.23.0" "root" .) | quote }}
{{- with $engines.pullPolicy }}
- name: GLM5_OPERATOR_SITE_IMAGE_PULL_POLICY
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "glm5.extraEnv" -}}
{{- range .Values.extraEnv }}
- name: {{ .name | quote }}
  {{- if hasKey . "valueFrom" }}
  valueFrom:
    {{- toYaml .valueFrom | nindent 4 }}
  {{- else }}
  value: {{ include "glm5.text" .value | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "glm5.resources" -}}
{{- $resources := .Values.resources | default dict -}}
{{- range $part := list "limits" "requests" }}
{{- with get $resources $part }}
{{ $part }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}
