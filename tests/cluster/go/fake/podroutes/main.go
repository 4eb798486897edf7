// podroutes keeps, on the node it runs on, a route to every other node's pod subnet: the part of kindnetd that a cluster
// of more than one node needs. It runs as a DaemonSet, because a kubelet may not list the other nodes.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/vishvananda/netlink"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

// The few fields that matter: client-go would make the program seven times larger.
type nodeList struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ PodCIDR string }
		Status   struct {
			Addresses []struct{ Type, Address string }
		}
	}
}

func main() {
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	// kind sets CONTROL_PLANE_ENDPOINT: the Service address answers only once kube-proxy runs.
	server := os.Getenv("CONTROL_PLANE_ENDPOINT")
	if server == "" {
		server = net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	}
	for ; ; time.Sleep(2 * time.Second) {
		nodes, err := listNodes(client, "https://"+server)
		if err != nil {
			log.Print(err)
			continue
		}
		setRoutes(nodes, os.Getenv("HOST_IP"))
	}
}

func listNodes(client *http.Client, server string) (nodeList, error) {
	var nodes nodeList
	request, err := http.NewRequest(http.MethodGet, server+"/api/v1/nodes", nil)
	if err != nil {
		return nodes, err
	}
	token, err := os.ReadFile(account + "token") // read each time: the kubelet renews it
	if err != nil {
		return nodes, err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := client.Do(request)
	if err != nil {
		return nodes, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nodes, fmt.Errorf("list nodes: %s", response.Status)
	}
	return nodes, json.NewDecoder(response.Body).Decode(&nodes)
}

func setRoutes(nodes nodeList, self string) {
	for _, node := range nodes.Items {
		_, subnet, err := net.ParseCIDR(node.Spec.PodCIDR)
		if err != nil {
			continue // the controller manager has not given it a subnet yet
		}
		for _, address := range node.Status.Addresses {
			if address.Type != "InternalIP" || address.Address == self {
				continue
			}
			if err := netlink.RouteReplace(&netlink.Route{Dst: subnet, Gw: net.ParseIP(address.Address)}); err != nil {
				log.Printf("route to %s of %s: %v", subnet, node.Metadata.Name, err)
			}
		}
	}
}
