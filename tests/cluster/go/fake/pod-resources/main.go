// pod-resources stands for a kubelet's PodResources API: it serves one answer from a JSON file on a socket, with kubelet's own generated
// code, so that a client is tested against the real protocol and field numbers without a kubelet.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

type answer struct {
	Refuse      string   // an error instead of the answer
	Allocatable []string // resources that the node has a device of; none says that the question isn't known
	Pods   []struct {
		Namespace, Name string
		Containers      []struct {
			Name    string
			Devices []struct {
				Resource string
				IDs      []string
			}
		}
	}
}

type server struct {
	api.UnimplementedPodResourcesListerServer
	file string
}

func (s *server) read() (answer, error) {
	said := answer{}
	raw, err := os.ReadFile(s.file)
	if err == nil {
		err = json.Unmarshal(raw, &said)
	}
	if err == nil && said.Refuse != "" {
		err = status.Error(codes.ResourceExhausted, said.Refuse)
	}
	return said, err
}

func (s *server) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	said, err := s.read()
	if err == nil && said.Allocatable == nil {
		err = status.Error(codes.Unimplemented, "unknown method GetAllocatableResources")
	}
	response := &api.AllocatableResourcesResponse{CpuIds: []int64{0, 1}}
	for _, resource := range said.Allocatable {
		response.Devices = append(response.Devices, &api.ContainerDevices{ResourceName: resource, DeviceIds: []string{"a-0"}})
	}
	return response, err
}

func (s *server) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	said, err := s.read()
	if err != nil {
		return nil, err
	}
	response := &api.ListPodResourcesResponse{}
	for _, pod := range said.Pods {
		resources := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for _, container := range pod.Containers {
			// CPUs, memory and topology too: a client has to pass over what it doesn't ask for.
			given := &api.ContainerResources{Name: container.Name, CpuIds: []int64{0, 1, 300}}
			given.Memory = []*api.ContainerMemory{{MemoryType: "hugepages-2Mi", Size: 1 << 40}}
			for _, device := range container.Devices {
				topology := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}
				given.Devices = append(given.Devices, &api.ContainerDevices{ResourceName: device.Resource, DeviceIds: device.IDs, Topology: topology})
			}
			resources.Containers = append(resources.Containers, given)
		}
		response.PodResources = append(response.PodResources, resources)
	}
	return response, nil
}

func main() {
	listener, err := net.Listen("unix", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	listening := grpc.NewServer()
	api.RegisterPodResourcesListerServer(listening, &server{file: os.Args[2]})
	log.Fatal(listening.Serve(listener))
}
